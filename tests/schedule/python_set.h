// The order in which CPython iterates over a small set of integers. The reference keeps a rank's unsharded
// stages in such a set and reshards them in that order.
#pragma once

#include <cstddef>
#include <vector>

namespace penstock::schedule {

//! A hash set of non-negative integers with the probing, growth and tombstones of CPython (only its order
//! matters).
class PythonSet {
 public:
  void add(int value);
  void remove(int value);
  bool contains(int value) const { return find(value) != kNone; }
  //! The values in the order of iteration.
  std::vector<int> values() const;

 private:
  static constexpr int kEmpty = -1, kRemoved = -2;
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  template <class Stop>
  std::size_t probe(int value, Stop&& stop) const;
  std::size_t find(int value) const;
  void grow();

  std::vector<int> table_ = std::vector<int>(8, kEmpty);
  std::size_t filled_ = 0;  // values and tombstones
  std::size_t used_ = 0;    // values
};

}  // namespace penstock::schedule
