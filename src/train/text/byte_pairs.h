// Byte-pair encoding: a text starts as a list of symbols, and pairs of neighbors are merged by rank.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace penstock::train {

//! Two neighbors as one number.
inline std::uint64_t neighbors_key(std::uint32_t left, std::uint32_t right) {
  return std::uint64_t{left} << 32 | right;
}

struct Merge {
  std::uint32_t rank = 0;
  std::uint32_t token = 0;  //!< that replaces the pair
};

//! The merges of a model, by pairs of tokens.
class BytePairs {
 public:
  //! Adds a merge. The last one of a pair counts.
  void add(std::uint32_t left, std::uint32_t right, Merge merge) {
    merges_.insert_or_assign(neighbors_key(left, right), merge);
  }
  //! Repeatedly merges the pair with the lowest rank, the leftmost of them first, until there is none. For n
  //! symbols, this takes O(n log n) steps, and up to 36 n bytes of memory, usually 20 n. Throws UsageError if
  //! there are 2^32 - 1 symbols or more.
  void apply(std::vector<std::uint32_t>& symbols) const;

 private:
  const Merge* find(std::uint32_t left, std::uint32_t right) const {
    const auto found = merges_.find(neighbors_key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace penstock::train
