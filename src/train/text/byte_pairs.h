// Byte-pair encoding: a word starts as a list of bytes, and pairs of neighbors are merged by rank.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::train {

struct Merge {
  std::uint32_t rank = 0;
  std::uint32_t token = 0;  //!< that replaces the pair
};

//! The merges of a model, by pairs of tokens.
class BytePairs {
 public:
  //! Adds a merge. The first one of a pair counts.
  void add(std::uint32_t left, std::uint32_t right, Merge merge) { merges_.emplace(key(left, right), merge); }
  //! Repeatedly merges the pair with the lowest rank, the leftmost of them first, until there is none.
  void apply(std::vector<std::uint32_t>& word) const;

 private:
  static std::uint64_t key(std::uint32_t left, std::uint32_t right) {
    return std::uint64_t{left} << 32 | right;
  }
  const Merge* find(std::uint32_t left, std::uint32_t right) const {
    const auto found = merges_.find(key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace penstock::train
