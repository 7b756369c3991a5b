// The order of examples: permutations compared with a Python program, epochs with their definition.
#include "support/error_message.h"
#include "support/program.h"

#include <penstock/base/error.h>
#include <penstock/train/epochs.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace penstock::train {
namespace {

std::vector<std::int64_t> numbers(const Permutation& permutation) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < permutation.size(); ++i) all.push_back(permutation[i]);
  return all;
}

TEST(TrainEpochs, PermutationContainsEveryNumberOnce) {
  for (std::int64_t size = 0; size < 300; ++size) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(size)), order;
    std::iota(all.begin(), all.end(), 0);
    for (const std::uint64_t seed : {0ULL, 1ULL, ~0ULL}) {
      order = numbers(Permutation(size, seed, 1));
      std::sort(order.begin(), order.end());
      EXPECT_EQ(order, all) << "size " << size << ", seed " << seed;
    }
  }
  // Sizes that do not fit in memory work too.
  const Permutation large(std::int64_t{1} << 40, 3, 1);
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 1000; ++i) seen.insert(large[i]);
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_GT(*seen.rbegin(), std::int64_t{1} << 39);
  EXPECT_ERROR(Permutation(-1, 1, 1), UsageError, "at least 0");
}

TEST(TrainEpochs, PermutationsMatchPython) {
  if (!test::has_program("python3")) GTEST_SKIP() << "needs python3";
  const test::Outcome outcome =
      test::run_program({"python3", PENSTOCK_SOURCE_DIR "/tests/train/shuffled_order.py", "1,1,1", "2,7,1",
                         "20,1,1", "20,1,2", "257,18446744073709551615,3", "1000,12345,1000000007"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::string expected;
  for (const auto& [size, seed, number] : {std::tuple<std::int64_t, std::uint64_t, std::uint64_t>{1, 1, 1},
                                           {2, 7, 1},
                                           {20, 1, 1},
                                           {20, 1, 2},
                                           {257, ~0ULL, 3},
                                           {1000, 12345, 1000000007}}) {
    std::string line;
    for (const std::int64_t n : numbers(Permutation(size, seed, number)))
      line += (line.empty() ? "" : " ") + std::to_string(n);
    expected += line + "\n";
  }
  EXPECT_EQ(outcome.out, expected);
}

// The number of times that a value lands on an index is binomial: 6000 trials with probability 1/size. Six
// standard deviations are allowed.
TEST(TrainEpochs, PermutationsAreUniform) {
  constexpr int trials = 6000;
  for (const std::int64_t size : {2, 3, 4, 5, 7, 16}) {
    std::vector<std::vector<int>> counts(static_cast<std::size_t>(size),
                                         std::vector<int>(static_cast<std::size_t>(size)));
    for (std::uint64_t number = 1; number <= trials; ++number) {
      const std::vector<std::int64_t> order = numbers(Permutation(size, 5, number));
      for (std::size_t i = 0; i < order.size(); ++i) ++counts[i][static_cast<std::size_t>(order[i])];
    }
    const double p = 1.0 / static_cast<double>(size), deviation = std::sqrt(trials * p * (1 - p));
    for (const auto& row : counts)
      for (const int count : row) EXPECT_NEAR(count, trials * p, 6 * deviation) << "size " << size;
  }
}

// The examples of a step, with the bounds that `rows` gives.
std::vector<std::int64_t> batch_of(const Epochs& epochs, std::int64_t step, std::int64_t batch) {
  return epochs.examples_of(step, batch, 0, epochs.rows(step, batch));
}

TEST(TrainEpochs, ShuffledEpochServesEveryExampleOnce) {
  for (const auto& [examples, batch] : {std::pair{20, 8}, {20, 20}, {20, 1}, {7, 3}, {9, 3}}) {
    SCOPED_TRACE(std::to_string(examples) + " examples in batches of " + std::to_string(batch));
    const Epochs epochs(examples, {.shuffle = true, .seed = 4});
    const std::int64_t steps = epochs.steps(1, batch);
    EXPECT_EQ(steps, (examples + batch - 1) / batch);
    EXPECT_EQ(epochs.steps(3, batch), 3 * steps);
    std::set<std::vector<std::int64_t>> orders;
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<std::int64_t> order;
      for (std::int64_t step = 1; step <= steps; ++step) {
        const auto rows = batch_of(epochs, epoch * steps + step, batch);
        EXPECT_EQ(rows.size(),
                  static_cast<std::size_t>(step < steps || examples % batch == 0 ? batch : examples % batch));
        order.insert(order.end(), rows.begin(), rows.end());
      }
      EXPECT_EQ(std::set(order.begin(), order.end()).size(), static_cast<std::size_t>(examples));
      EXPECT_EQ(order.size(), static_cast<std::size_t>(examples));
      orders.insert(order);
    }
    EXPECT_EQ(orders.size(), 4U) << "the order does not depend on the epoch";
  }
}

TEST(TrainEpochs, DropLastLeavesOutIncompleteBatch) {
  const Epochs epochs(20, {.shuffle = true, .drop_last = true, .seed = 4});
  EXPECT_EQ(epochs.steps(3, 8), 6);
  std::set<std::int64_t> missing_in_one;
  for (std::int64_t step = 1; step <= 6; step += 2) {
    auto rows = batch_of(epochs, step, 8);
    const auto second = batch_of(epochs, step + 1, 8);
    EXPECT_EQ(rows.size() + second.size(), 16U);
    rows.insert(rows.end(), second.begin(), second.end());
    EXPECT_EQ(std::set(rows.begin(), rows.end()).size(), 16U);
  }
  const Epochs in_order(20, {.drop_last = true});
  EXPECT_EQ(in_order.steps(1, 8), 2);
  EXPECT_EQ(batch_of(in_order, 3, 8), batch_of(in_order, 1, 8));
  EXPECT_EQ(batch_of(in_order, 4, 8), (std::vector<std::int64_t>{8, 9, 10, 11, 12, 13, 14, 15}));
}

TEST(TrainEpochs, FileOrderWrapsAround) {
  const Epochs epochs(5, {});
  EXPECT_EQ(epochs.rows(3, 4), 4);
  EXPECT_EQ(batch_of(epochs, 3, 4), (std::vector<std::int64_t>{3, 4, 0, 1}));
  EXPECT_EQ(batch_of(epochs, 1, 7), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 0, 1}));
  EXPECT_EQ(epochs.steps(1, 4), 2);
  EXPECT_EQ(epochs.steps(4, 4), 5);
}

// Runs that continue each other with other batches read the examples of the orders one after the other.
TEST(TrainEpochs, OtherBatchContinuesWithNextUnreadRow) {
  for (const bool shuffle : {true, false}) {
    for (const std::int64_t examples : {20, 7, 33}) {
      SCOPED_TRACE(std::to_string(examples) + (shuffle ? " shuffled" : " in file order"));
      std::vector<std::int64_t> read, expected;
      EpochPosition position;
      for (const auto& [batch, steps] : {std::pair{3, 4}, {5, 1}, {2, 9}, {7, 3}, {1, 2}, {4, 6}, {7, 0}}) {
        const Epochs epochs(examples, {.shuffle = shuffle, .seed = 6}, position);
        for (std::int64_t step = 1; step <= steps; ++step) {
          const auto rows = batch_of(epochs, position.step + step, batch);
          read.insert(read.end(), rows.begin(), rows.end());
        }
        position = epochs.after(position.step + steps, batch);
      }
      EXPECT_EQ(position.step, 25);
      for (std::uint64_t epoch = 1; expected.size() < read.size(); ++epoch) {
        const Permutation order(examples, 6, epoch);
        for (std::int64_t row = 0; row < examples; ++row) expected.push_back(shuffle ? order[row] : row);
      }
      const auto last = static_cast<std::int64_t>(read.size());
      EXPECT_EQ(position.epoch, last / examples + 1);
      EXPECT_EQ(position.row, last % examples);
      expected.resize(read.size());
      EXPECT_EQ(read, expected);
      // The steps to the end of this epoch and of two more.
      const Epochs epochs(examples, {.shuffle = shuffle, .seed = 6}, position);
      const std::int64_t all = epochs.steps(position.epoch + 2, 4);
      std::int64_t rest = 3 * examples - position.row;
      for (std::int64_t step = 26; step <= all; ++step) rest -= epochs.rows(step, 4);
      EXPECT_TRUE(shuffle ? rest == 0 : rest <= 0 && rest > -4) << rest;
    }
  }
}

TEST(TrainEpochs, ContinuesWhereTheSameBatchWouldBe) {
  for (const EpochOptions& options :
       {EpochOptions{}, EpochOptions{.shuffle = true}, EpochOptions{.shuffle = true, .drop_last = true},
        EpochOptions{.drop_last = true}}) {
    const Epochs whole(20, options);
    for (std::int64_t stop = 0; stop < 8; ++stop) {
      const Epochs rest(20, options, whole.after(stop, 6));
      EXPECT_EQ(rest.after(stop, 6), whole.after(stop, 6));
      EXPECT_EQ(rest.steps(5, 6), whole.steps(5, 6));
      for (std::int64_t step = stop + 1; step < 12; ++step)
        EXPECT_EQ(batch_of(rest, step, 6), batch_of(whole, step, 6)) << stop << ", " << step;
    }
  }
  // The two rows that are too few for a batch of 6 are read by a smaller one.
  const Epochs dropped(20, {.shuffle = true, .drop_last = true, .seed = 2});
  const Epochs smaller(20, {.shuffle = true, .drop_last = true, .seed = 2}, dropped.after(3, 6));
  const Permutation order(20, 2, 1);
  EXPECT_EQ(batch_of(smaller, 4, 2), (std::vector{order[18], order[19]}));
  EXPECT_EQ(smaller.after(4, 2), (EpochPosition{4, 2, 0}));
  EXPECT_ERROR(Epochs(20, {}, {.row = 20}), UsageError, "row 20 of epoch 1 does not exist");
}

TEST(TrainEpochs, RefusesMoreStepsThanFit) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const EpochOptions& options :
       {EpochOptions{}, EpochOptions{.shuffle = true}, EpochOptions{.drop_last = true}})
    EXPECT_ERROR(Epochs(20, options).steps(most / 4, 4), UsageError, "more steps than can be counted");
  EXPECT_EQ(Epochs(20, {.shuffle = true}).steps(most / 5, 4), most / 5 * 5);
  EXPECT_EQ(Epochs(20, {}).steps(most / 40, 4), most / 40 * 5);
  EXPECT_EQ(steps_over(0, 7, 2), 0);
  EXPECT_EQ(steps_over(3, 7, 2), 11);
  EXPECT_ERROR(steps_over(most, 2, 1), UsageError, "use fewer epochs");
}

TEST(TrainEpochs, RefusesBatchLargerThanData) {
  for (const EpochOptions& options : {EpochOptions{.shuffle = true}, EpochOptions{.drop_last = true}})
    EXPECT_ERROR(Epochs(5, options).rows(1, 6), UsageError, "a batch of 6 is larger than the data");
  EXPECT_ERROR(Epochs(0, {}), UsageError, "no training examples");
  EXPECT_ERROR(Epochs(5, {}).rows(1, 0), UsageError, "at least one row");
}

}  // namespace
}  // namespace penstock::train
