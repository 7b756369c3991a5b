// The order in which a run reads the examples of a data set: passes over all of them (epochs), shuffled or in
// file order. The order depends on the seed and the step only, never on the ranks. Does not need libtorch.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace penstock::train {

//! A random permutation of the numbers 0 to `size` - 1, computed per element: it needs no memory that grows
//! with `size`. A Feistel network permutes the numbers below the next power of 4; numbers of `size` or more
//! are permuted again. docs/training.md has the formula in Python.
class Permutation {
 public:
  //! Each pair of `seed` and `number` gives another permutation. Throws UsageError if `size` is negative.
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t number);

  std::int64_t size() const { return static_cast<std::int64_t>(size_); }
  //! Requires 0 <= index < size().
  std::int64_t operator[](std::int64_t index) const;

 private:
  std::uint64_t size_;
  unsigned half_bits_;
  std::array<std::uint64_t, 8> round_keys_;
};

//! How a run passes over its examples.
struct EpochOptions {
  bool shuffle = false;    //!< read the examples of each epoch in a random order of its own
  bool drop_last = false;  //!< leave out the last examples of an epoch if they do not fill a batch
  std::uint64_t seed = 1;  //!< determines the random orders
};

//! A position in the data: the next row to read, and after how many steps.
struct EpochPosition {
  std::int64_t step = 0;
  std::int64_t epoch = 1;
  std::int64_t row = 0;  //!< in the order of the epoch, below the number of examples

  friend bool operator==(const EpochPosition&, const EpochPosition&) = default;
};

//! The number of batches in this many passes over `size` examples or tokens, if batches continue with the
//! next pass. Requires batch > 0. Throws UsageError if the number does not fit.
std::int64_t steps_over(std::int64_t epochs, std::int64_t size, std::int64_t batch);

//! The examples of every batch. A shuffled epoch ends with a batch that may have fewer rows, or without it if
//! `drop_last` is set. In file order, without `drop_last`, epochs have no bounds: row r of step k (from 1) is
//! example (k-1)*batch + r, modulo the number of examples. A run that continues from a position, possibly
//! with another batch, reads each remaining row of the epoch once.
class Epochs {
 public:
  //! Batches after step `start.step` continue at `start`; those up to it are as without `start`. Throws
  //! UsageError if there are no examples or the position does not exist.
  Epochs(std::int64_t examples, const EpochOptions& options, const EpochPosition& start = {});

  std::int64_t examples() const { return examples_; }
  //! The number of rows in the batch of a step (from 1), at most `batch`. Throws UsageError if the batch is
  //! larger than the data set, unless it may wrap around.
  std::int64_t rows(std::int64_t step, std::int64_t batch) const;
  //! The examples in rows `begin` to `end` (exclusive) of the batch of a step. Throws like `rows`.
  std::vector<std::int64_t> examples_of(std::int64_t step, std::int64_t batch, std::int64_t begin,
                                        std::int64_t end) const;
  //! The position after a step.
  EpochPosition after(std::int64_t step, std::int64_t batch) const;
  //! The number of steps of this many passes over the examples, with those before the start. Throws like
  //! `rows`, and UsageError if the number does not fit.
  std::int64_t steps(std::int64_t epochs, std::int64_t batch) const;

 private:
  //! The position of the first row of a batch.
  EpochPosition locate(std::int64_t step, std::int64_t batch) const;
  bool has_bounds() const { return options_.shuffle || options_.drop_last; }
  //! The number of batches in the last `rows` rows of an epoch. Throws like `rows`.
  std::int64_t batches_in(std::int64_t rows, std::int64_t batch) const;

  std::int64_t examples_;
  EpochOptions options_;
  EpochPosition start_;
};

}  // namespace penstock::train
