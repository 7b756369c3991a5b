// The order of examples: a permutation per epoch.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/train/epochs.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace penstock::train {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;  // 2^64 divided by the golden ratio

// The output function of the generator SplitMix64: every bit of the result depends on every bit of `bits`.
std::uint64_t scramble(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return bits ^ (bits >> 31);
}

void check_batch(std::int64_t batch) {
  if (batch < 1) throw UsageError("a batch needs at least one row");
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t number)
    : size_(static_cast<std::uint64_t>(size)), half_bits_(1), round_keys_{} {
  if (size < 0) throw UsageError("a permutation needs a size of at least 0");
  const auto bits = static_cast<unsigned>(std::bit_width(std::max<std::uint64_t>(size_, 1) - 1));
  half_bits_ = std::max(1U, (bits + 1) / 2);
  const std::uint64_t key = scramble(scramble(seed + kGolden) + number * kGolden);
  for (std::size_t round = 0; round < round_keys_.size(); ++round)
    round_keys_[round] = scramble(key + (round + 1) * kGolden);
}

std::int64_t Permutation::operator[](std::int64_t index) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto number = static_cast<std::uint64_t>(index);
  // The network permutes a set of less than 4 * size numbers, so few of them leave the range.
  do {
    std::uint64_t left = number >> half_bits_, right = number & mask;
    for (const std::uint64_t key : round_keys_) {
      const std::uint64_t next = left ^ (scramble(right + key) & mask);
      left = right;
      right = next;
    }
    number = left << half_bits_ | right;
  } while (number >= size_);
  return static_cast<std::int64_t>(number);
}

std::int64_t steps_over(std::int64_t epochs, std::int64_t size, std::int64_t batch) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  if (epochs < 0) throw UsageError("the number of epochs must be at least 0");
  // size * epochs + batch - 1 must fit.
  if (size > 0 && epochs > (most - (batch - 1)) / size)
    throw UsageError(str_cat(epochs, " epochs of this data have more steps than can be counted"), {},
                     "use fewer epochs");
  return (epochs * size + batch - 1) / batch;
}

Epochs::Epochs(std::int64_t examples, const EpochOptions& options, const EpochPosition& start)
    : examples_(examples), options_(options), start_(start) {
  if (examples < 1) throw UsageError("the data has no training examples");
  if (start.step < 0 || start.epoch < 1 || start.row < 0 || start.row >= examples)
    throw UsageError(str_cat("row ", start.row, " of epoch ", start.epoch, " does not exist in data of ",
                             examples, " training examples"));
}

std::int64_t Epochs::batches_in(std::int64_t rows, std::int64_t batch) const {
  if (batch > examples_)
    throw UsageError(
        str_cat("a batch of ", batch, " is larger than the data, which has ", examples_,
                " training examples"),
        {}, str_cat("use a batch of at most ", examples_, ", or file order, in which batches wrap around"));
  return options_.drop_last ? rows / batch : (rows + batch - 1) / batch;
}

EpochPosition Epochs::locate(std::int64_t step, std::int64_t batch) const {
  check_batch(batch);
  const EpochPosition start = step > start_.step ? start_ : EpochPosition{};
  std::int64_t index = step - start.step - 1;  // of the batch, from the start
  if (!has_bounds()) {
    const std::int64_t row = start.row + index * batch;
    return {step - 1, start.epoch + row / examples_, row % examples_};
  }
  const std::int64_t in_first = batches_in(examples_ - start.row, batch);
  if (index < in_first) return {step - 1, start.epoch, start.row + index * batch};
  index -= in_first;
  const std::int64_t in_each = batches_in(examples_, batch);
  return {step - 1, start.epoch + 1 + index / in_each, index % in_each * batch};
}

std::int64_t Epochs::rows(std::int64_t step, std::int64_t batch) const {
  const EpochPosition first = locate(step, batch);
  return has_bounds() ? std::min(batch, examples_ - first.row) : batch;
}

std::vector<std::int64_t> Epochs::examples_of(std::int64_t step, std::int64_t batch, std::int64_t begin,
                                              std::int64_t end) const {
  const EpochPosition first = locate(step, batch);
  std::vector<std::int64_t> indices;
  indices.reserve(static_cast<std::size_t>(end - begin));
  if (options_.shuffle) {
    // Number 0 is the permutation that selects validation rows.
    const Permutation order(examples_, options_.seed, static_cast<std::uint64_t>(first.epoch));
    for (std::int64_t row = begin; row < end; ++row) indices.push_back(order[first.row + row]);
  } else {
    for (std::int64_t row = begin; row < end; ++row) indices.push_back((first.row + row) % examples_);
  }
  return indices;
}

EpochPosition Epochs::after(std::int64_t step, std::int64_t batch) const {
  if (step == start_.step) return start_;
  const EpochPosition first = locate(step, batch);
  const std::int64_t row = first.row + rows(step, batch);
  return {step, first.epoch + row / examples_, row % examples_};
}

std::int64_t Epochs::steps(std::int64_t epochs, std::int64_t batch) const {
  check_batch(batch);
  const std::int64_t each = has_bounds() ? batches_in(examples_, batch) : 0;
  const std::int64_t whole =
      has_bounds() ? steps_over(epochs, each, 1) : steps_over(epochs, examples_, batch);
  if (start_ == EpochPosition{}) return whole;
  const std::int64_t more = epochs - start_.epoch;  // complete ones after that of the start
  if (more < 0) return start_.step;
  const std::int64_t rest = examples_ - start_.row;
  if (has_bounds()) return start_.step + batches_in(rest, batch) + more * each;
  return start_.step + (more * examples_ + rest + batch - 1) / batch;
}

}  // namespace penstock::train
