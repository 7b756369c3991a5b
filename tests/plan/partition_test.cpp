// The partitioner compared with brute force over all partitions.
#include "plan/partition_search.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/plan/partition.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace penstock::plan {
namespace {

struct Solution {
  double slowest = 0;
  std::uint64_t fullest = 0;
};

//! With recomputation, each microbatch in flight keeps its input, and one has its activations.
std::uint64_t stage_memory(const std::vector<Layer>& layers, int from, int to, int in_flight) {
  std::uint64_t resident = 0, activations = 0;
  for (int i = from; i < to; ++i) {
    resident += layers[i].costs.resident_bytes();
    activations += layers[i].costs.activation_bytes + layers[i].costs.weight_bytes;
  }
  const auto count = static_cast<std::uint64_t>(in_flight);
  if (!layers[0].costs.recompute) return resident + activations * count;
  std::uint64_t input = layers[from].costs.input_bytes;
  if (input == 0 && from > 0) input = layers[from - 1].costs.output_bytes;
  return resident + activations + input * count;
}

//! All choices of boundaries; keeps the least (slowest stage, fullest rank) under the cap.
std::optional<Solution> brute_force(const std::vector<Layer>& layers, const PartitionOptions& options) {
  const int n = static_cast<int>(layers.size()), stages = static_cast<int>(options.rank_of_stage.size());
  std::optional<Solution> best;
  std::vector<int> chosen(static_cast<std::size_t>(n - 1), 0);
  std::fill(chosen.begin(), chosen.begin() + (stages - 1), 1);
  do {
    std::vector<int> boundaries{0};
    for (int i = 0; i < n - 1; ++i) {
      if (chosen[i]) boundaries.push_back(i + 1);
    }
    boundaries.push_back(n);
    Solution solution;
    std::vector<std::uint64_t> ranks(64, 0);
    for (int s = 0; s < stages; ++s) {
      double time = 0;
      for (int i = boundaries[s]; i < boundaries[s + 1]; ++i) time += layers[i].costs.total_time();
      solution.slowest = std::max(solution.slowest, time);
      ranks[options.rank_of_stage[s].value] += stage_memory(
          layers, boundaries[s], boundaries[s + 1], options.in_flight.empty() ? 1 : options.in_flight[s]);
    }
    solution.fullest = *std::max_element(ranks.begin(), ranks.end());
    if (options.memory_cap && solution.fullest > *options.memory_cap) continue;
    if (!best || std::pair(solution.slowest, solution.fullest) < std::pair(best->slowest, best->fullest))
      best = solution;
  } while (std::prev_permutation(chosen.begin(), chosen.end()));
  return best;
}

std::vector<Rank> placement(int ranks, int stages_per_rank, bool v_shaped) {
  std::vector<Rank> result;
  for (int s = 0; s < ranks * stages_per_rank; ++s) {
    const bool back = v_shaped && (s / ranks) % 2 == 1;
    result.emplace_back(back ? ranks - 1 - s % ranks : s % ranks);
  }
  return result;
}

std::vector<Layer> random_layers(std::mt19937& random, int count) {
  std::vector<Layer> layers;
  const auto pick = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
  for (int i = 0; i < count; ++i) {
    StageCosts costs;
    costs.forward = pick(4);  // integers, so that sums compare exactly
    costs.input = pick(4);
    costs.weight = pick(4);
    costs.activation_bytes = static_cast<std::uint64_t>(pick(20));
    costs.weight_bytes = static_cast<std::uint64_t>(pick(5));
    costs.parameter_bytes = static_cast<std::uint64_t>(pick(30));
    if (i == 0 || i == count - 1) costs.parameter_bytes += 60;  // embedding and head
    layers.push_back({"layer" + std::to_string(i), costs});
  }
  return layers;
}

TEST(PlanPartition, MatchesBruteForceForRandomChains) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 4);
    const int stages_per_rank = 1 + static_cast<int>(random() % 3);
    const int stages = ranks * stages_per_rank;
    if (stages > 9) continue;
    const int count = stages + static_cast<int>(random() % 5);
    auto layers = random_layers(random, count);
    for (Layer& layer : layers) {
      if (seed % 3 != 0) break;
      layer.costs.recompute = true;
      layer.costs.output_bytes = random() % 20;
      layer.costs.input_bytes =
          random() % 2 * (random() % 20);  // without one, the output of the layer before it
    }
    PartitionOptions options{placement(ranks, stages_per_rank, random() % 2 == 0), {}, {}};
    if (random() % 2 == 0) {
      for (int s = 0; s < stages; ++s) options.in_flight.push_back(1 + static_cast<int>(random() % 4));
    }
    if (random() % 2 == 0) options.memory_cap = 40 + random() % 400;
    const auto expected = brute_force(layers, options);
    const auto found = partition_layers(layers, options);
    ASSERT_EQ(found.has_value(), expected.has_value()) << "seed " << seed;
    if (!found) continue;
    EXPECT_TRUE(found->exact) << "seed " << seed;
    EXPECT_EQ(found->slowest, expected->slowest) << "seed " << seed;
    EXPECT_EQ(found->fullest, expected->fullest) << "seed " << seed;
    ASSERT_EQ(found->first_layer.size(), static_cast<std::size_t>(stages) + 1) << "seed " << seed;
    EXPECT_EQ(found->first_layer.front(), 0);
    EXPECT_EQ(found->first_layer.back(), count);
    double slowest = 0;
    for (const StageCosts& stage : found->stages) slowest = std::max(slowest, stage.total_time());
    EXPECT_EQ(slowest, expected->slowest) << "the partition must have the reported time; seed " << seed;
  }
}

TEST(PlanPartition, MinimizesSlowestStageForArbitraryPlacements) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto layers = random_layers(random, 9);
    PartitionOptions options{{Rank(0), Rank(2), Rank(1), Rank(1), Rank(0)}, {}, {}};
    const auto found = partition_layers(layers, options);
    ASSERT_TRUE(found);
    EXPECT_FALSE(found->exact);
    EXPECT_EQ(found->slowest, brute_force(layers, options)->slowest) << "seed " << seed;
  }
}

TEST(PlanPartition, BalancesHundredLayersOverManyRanks) {
  std::vector<Layer> layers(
      98,
      Layer{"block", {.forward = 1, .input = 1, .weight = 1, .activation_bytes = 4, .parameter_bytes = 12}});
  layers.insert(layers.begin(),
                Layer{"embedding", {.forward = 0, .input = 0, .weight = 1, .parameter_bytes = 100}});
  layers.push_back(Layer{"head", {.forward = 2, .input = 2, .weight = 2, .parameter_bytes = 100}});
  const auto plain = partition_layers(layers, {placement(16, 1, false), {}, {}});
  ASSERT_TRUE(plain && plain->exact);
  EXPECT_EQ(plain->slowest, 21);  // 98 blocks of 3 and a head of 6 in 16 stages: the optimum is 7 blocks
  const auto looped = partition_layers(layers, {placement(16, 2, false), {}, {}});
  ASSERT_TRUE(looped && looped->exact);
  EXPECT_EQ(looped->slowest, 12);
  const auto v_shaped = partition_layers(layers, {placement(16, 2, true), {}, {}});
  ASSERT_TRUE(v_shaped && v_shaped->exact);
  EXPECT_EQ(v_shaped->slowest, 12);
}

TEST(PlanPartition, IsExactForOneStagePerRankOfAnyCount) {
  std::mt19937 random(1);
  const auto layers = random_layers(random, 300);
  const auto found = partition_layers(layers, {placement(64, 1, false), {}, {}});
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->exact);
  const auto reversed = partition_layers(layers, {{Rank(2), Rank(0), Rank(1)}, {}, {}});
  ASSERT_TRUE(reversed);
  EXPECT_TRUE(reversed->exact);
  EXPECT_EQ(reversed->slowest, partition_layers(layers, {placement(3, 1, false), {}, {}})->slowest);
}

//! The least bound of the slowest stage, for integer times: greedy filling for each candidate.
int least_bound(const std::vector<int>& times, int stages) {
  const auto fits = [&](int bound) {
    int used = 1, sum = 0;
    for (const int time : times) {
      if (time > bound) return false;
      if (sum + time > bound) ++used, sum = 0;
      sum += time;
    }
    return used <= stages;
  };
  int bound = 1;
  while (!fits(bound)) ++bound;
  return bound;
}

// Chains of more than 2,048 layers take another path: the times of all ranges are not listed.
TEST(PlanPartition, MinimizesSlowestStageOfLongChains) {
  std::mt19937 random(3);
  for (const auto& [count, ranks, per_rank] : {std::tuple(2100, 7, 1), {2500, 600, 2}, {2500, 600, 4}}) {
    std::vector<int> times;
    std::vector<Layer> layers;
    for (int i = 0; i < count; ++i) {
      times.push_back(3 * (1 + static_cast<int>(random() % 9)));
      layers.push_back({"",
                        {.forward = times.back() / 3.0,
                         .input = times.back() / 3.0,
                         .weight = times.back() / 3.0,
                         .activation_bytes = 1 + random() % 5}});
    }
    const auto found = partition_layers(layers, {placement(ranks, per_rank, false), {}, {}});
    ASSERT_TRUE(found);
    EXPECT_EQ(found->slowest, least_bound(times, ranks * per_rank)) << count;
    EXPECT_EQ(found->exact, per_rank == 1);
    // A cap that excludes this partition costs time; one below the mean leaves none.
    const auto capped = partition_layers(layers, {placement(ranks, per_rank, false), {}, found->fullest - 1});
    if (capped) {
      EXPECT_LT(capped->fullest, found->fullest);
      EXPECT_GE(capped->slowest, found->slowest);
    }
    std::uint64_t total = 0;
    for (const Layer& layer : layers) total += layer.costs.activation_bytes;
    const std::uint64_t mean = total / static_cast<std::uint64_t>(ranks);
    EXPECT_FALSE(partition_layers(layers, {placement(ranks, per_rank, false), {}, mean - 1})) << count;
  }
}

TEST(PlanPartition, IsExactForUpTo4StagesPerRank) {
  std::mt19937 random(3);
  const auto layers = random_layers(random, 12);
  for (const bool v_shaped : {false, true}) {
    const auto four = partition_layers(layers, {placement(2, 4, v_shaped), {}, {}});
    ASSERT_TRUE(four);
    EXPECT_TRUE(four->exact);
    EXPECT_EQ(four->fullest, brute_force(layers, {placement(2, 4, v_shaped), {}, {}})->fullest);
    const auto five = partition_layers(layers, {placement(2, 5, v_shaped), {}, {}});
    ASSERT_TRUE(five);
    EXPECT_FALSE(five->exact);
    EXPECT_EQ(five->slowest, brute_force(layers, {placement(2, 5, v_shaped), {}, {}})->slowest);
  }
}

// Only the stage by stage search supports these placements: it minimizes the fullest stage.
TEST(PlanPartition, MinimizesFullestStageForOneStagePerRankInAnyOrder) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto layers = random_layers(random, 8);
    PartitionOptions options{{Rank(2), Rank(0), Rank(1)}, {3, 1, 2}, {}};
    if (seed % 2 == 0) options.memory_cap = 40 + random() % 400;
    const auto expected = brute_force(layers, options);
    const auto found = partition_layers(layers, options);
    ASSERT_EQ(found.has_value(), expected.has_value()) << "seed " << seed;
    if (!found) continue;
    EXPECT_TRUE(found->exact);
    EXPECT_EQ(found->slowest, expected->slowest) << "seed " << seed;
    EXPECT_EQ(found->fullest, expected->fullest) << "seed " << seed;
  }
}

std::string partition_error(const std::vector<Layer>& layers, const PartitionOptions& options) {
  return test::error_message<UsageError>([&] { partition_layers(layers, options); });
}

TEST(PlanPartition, RejectsFewerLayersThanStagesAndNegativeRanks) {
  const std::vector<Layer> layers(3);
  EXPECT_EQ(partition_error(layers, {placement(4, 1, false), {}, {}}),
            "3 layers cannot fill 4 stages\nhint: use at most 3 stages");
  EXPECT_EQ(partition_error(layers, {{Rank(0), Rank(-1)}, {}, {}}), "invalid rank -1");
}

TEST(PlanPartition, RejectsInconsistentOptions) {
  std::vector<Layer> layers(3);
  EXPECT_EQ(partition_error(layers, {{}, {}, {}}), "a partition needs at least one stage");
  EXPECT_EQ(partition_error(layers, {placement(2, 1, false), {1}, {}}),
            "in_flight must have one entry per stage");
  EXPECT_EQ(partition_error(layers, {placement(2, 1, false), {1, -1}, {}}), "in_flight must not be negative");
  EXPECT_TRUE(partition_layers(layers, {placement(2, 1, false), {1, 0}, {}}));
  EXPECT_TRUE(partition_layers(layers, {placement(3, 1, false), {}, {}}));
  layers[1].costs.recompute = true;
  EXPECT_EQ(partition_error(layers, {placement(2, 1, false), {}, {}}),
            "either all layers or none must recompute their activations");
}

TEST(PlanPartition, StageWithoutInputSizeReceivesOutputOfStageBeforeIt) {
  std::vector<Layer> layers(5);
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].costs.output_bytes = 10 + i;
  layers[3].costs.input_bytes = 3;
  std::vector<std::uint64_t> inputs;
  for (const StageCosts& stage : make_stages(layers, {0, 2, 3, 4, 5})) inputs.push_back(stage.input_bytes);
  EXPECT_EQ(inputs, (std::vector<std::uint64_t>{0, 11, 3, 13}));
  layers[0].costs.input_bytes = 9;
  EXPECT_EQ(make_stages(layers, {0, 1, 5})[0].input_bytes, 9u);
  EXPECT_EQ(make_stages(layers, {0, 1, 5})[1].input_bytes, 10u);
}

TEST(PlanPartition, RankMemoryIsSumOfItsStages) {
  std::mt19937 random(7);
  const auto layers = random_layers(random, 8);
  const PartitionOptions options{placement(2, 2, true), {4, 3, 2, 1}, {}};
  const auto found = partition_layers(layers, options);
  ASSERT_TRUE(found);
  std::vector<std::uint64_t> ranks(2, 0);
  for (int s = 0; s < 4; ++s) {
    ranks[options.rank_of_stage[s].index()] +=
        stage_memory(layers, found->first_layer[s], found->first_layer[s + 1], options.in_flight[s]);
  }
  EXPECT_EQ(found->rank_memory, ranks);
  EXPECT_EQ(found->fullest, std::max(ranks[0], ranks[1]));
}

}  // namespace
}  // namespace penstock::plan
