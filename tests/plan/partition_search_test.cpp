// The planner's partition search compared with brute force over all partitions, and with a local search.
#include "plan/partition_search.h"

#include "partition_problems.h"

namespace penstock::plan {
namespace {

using namespace test;

//! The best score over all partitions.
Score least_score(const Problem& problem, const schedule::Program& program) {
  Score best{UINT64_MAX, 0};
  Boundaries boundaries{0};
  for_each_partition(static_cast<int>(problem.layers.size()), program.num_stages(), boundaries,
                     [&](const Boundaries& one) { best = std::min(best, score(problem, program, one)); });
  return best;
}

TEST(PlanPartitionSearch, PrefersLightLastStagesOverMinimalSlowestStage) {
  Problem problem;
  for (const double time : {8, 11, 2, 1, 18, 5, 4, 11}) problem.layers.push_back(layer(time));
  problem.options = {.ranks = 4,
                     .microbatches = {8},
                     .stages_per_rank = {1},
                     .schedules = {schedule::ScheduleKind::OneFOneB},
                     .recomputation = false};
  // The partition 0 1 3 5 has the fastest slowest stage, 20, and takes 600; 0 3 5 6 and 0 3 5 7 take 573.
  const Plan plan = problem.plan();
  EXPECT_EQ(plan.step_time, 573);
  EXPECT_EQ(plan.first_layer[1], 3);
  EXPECT_EQ(plan.first_layer[2], 5);
}

TEST(PlanPartitionSearch, MatchesBruteForceForSmallModels) {
  int compared = 0, capped = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto problem = random_problem(random, 4, 4);
    if (!problem) continue;
    const schedule::Program program = problem->program();
    const Score best = least_score(*problem, program);
    const Plan plan = problem->plan();
    const Score found = score(*problem, program, plan.first_layer);
    EXPECT_EQ(found.first, best.first) << "seed " << seed << " " << to_string(plan.schedule);
    EXPECT_NEAR(found.second, best.second, 1e-9 * best.second)
        << "seed " << seed << " " << to_string(plan.schedule);
    EXPECT_EQ(plan.step_time, found.second) << "seed " << seed << " " << to_string(plan.schedule);
    ++compared;
    capped += problem->options.memory_cap && best.first > 0;
  }
  EXPECT_GT(compared, 180);
  EXPECT_GT(capped, 5) << "some models must not fit at all";
}

// The quick evaluation does not apply if sharding has any cost, whichever it is.
TEST(PlanPartitionSearch, MatchesBruteForceWithShardingCosts) {
  int compared = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    auto problem = random_problem(random, 3, 3);
    if (!problem) continue;
    for (Layer& layer : problem->layers) {
      StageCosts& costs = layer.costs;
      costs.unshard = costs.reshard = costs.reduce_grad = 0;
      const auto some = random() % 40;
      if (seed % 4 == 0) costs.unshard = static_cast<double>(some);
      if (seed % 4 == 1) costs.reshard = static_cast<double>(some);
      if (seed % 4 == 2) costs.reduce_grad = static_cast<double>(some);
      if (seed % 4 == 3) costs.unsharded_bytes = some;
    }
    problem->options.send_mode = schedule::SendMode::Buffered;
    if (seed % 4 == 3) problem->options.memory_cap = 150 + random() % 200;
    const schedule::Program program = problem->program();
    const Score best = least_score(*problem, program);
    const Score found = score(*problem, program, problem->plan().first_layer);
    EXPECT_EQ(found.first, best.first) << "seed " << seed;
    EXPECT_NEAR(found.second, best.second, 1e-9 * best.second) << "seed " << seed;
    ++compared;
  }
  EXPECT_GT(compared, 60);
}

// A cap below every partition excludes none of them, and there are few enough to evaluate all.
TEST(PlanPartitionSearch, EvaluatesEveryPartitionOfSmallModel) {
  std::vector<Layer> layers;
  std::mt19937 random(1);
  for (int i = 0; i < 30; ++i) {
    layers.push_back(layer(1));
    layers.back().costs.activation_bytes = 1 + random() % 50;
  }
  const schedule::Program program =
      make_program(schedule::make_schedule("1F1B", {4, 1, 256}), schedule::SendMode::Buffered);
  // Stage s of 1F1B keeps 4 - s microbatches.
  std::uint64_t least = UINT64_MAX;
  const auto fullest = [&](const Boundaries& boundaries) {
    std::uint64_t most = 0;
    for (std::size_t s = 0; s < 4; ++s) {
      std::uint64_t bytes = 0;
      for (int i = boundaries[s]; i < boundaries[s + 1]; ++i)
        bytes += layers[static_cast<std::size_t>(i)].costs.activation_bytes;
      most = std::max(most, bytes * (4 - s));
    }
    return most;
  };
  Boundaries boundaries{0};
  for_each_partition(30, 4, boundaries,
                     [&](const Boundaries& one) { least = std::min(least, fullest(one)); });
  const PartitionResult found = search_partition(layers, program, {}, 10, {0, 1, 2, 3, 30});
  EXPECT_TRUE(found.exact);
  EXPECT_EQ(fullest(found.first_layer), least);
}

Boundaries even_boundaries(int layers, int stages) {
  Boundaries even;
  for (int s = 0; s <= stages; ++s) even.push_back(s * layers / stages);
  return even;
}

//! Compares the search from the even partition with brute force.
void expect_best_partition(const Problem& problem, unsigned seed) {
  const schedule::Program program = problem.program();
  const int count = static_cast<int>(problem.layers.size());
  const PartitionResult found = search_partition(problem.layers, program, problem.links, std::nullopt,
                                                 even_boundaries(count, program.num_stages()));
  EXPECT_TRUE(found.exact) << "seed " << seed;
  const double least = least_score(problem, program).second;
  EXPECT_NEAR(score(problem, program, found.first_layer).second, least, 1e-9 * least) << "seed " << seed;
}

// A bound that is too high by a constant excludes the best partition only if times are small.
TEST(PlanPartitionSearch, MatchesBruteForceForTimesFarBelowOne) {
  int compared = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    auto problem = random_problem(random, 4, 3);
    if (!problem) continue;
    for (Layer& layer : problem->layers) {
      StageCosts& costs = layer.costs;
      for (double* time : {&costs.forward, &costs.input, &costs.weight, &costs.unshard, &costs.reduce_grad})
        *time /= 1024;
      if (costs.backward) *costs.backward /= 1024;
    }
    problem->links.link = {problem->links.link.latency / 1024, problem->links.link.bandwidth * 1024};
    problem->options.memory_cap.reset();
    expect_best_partition(*problem, seed);
    ++compared;
  }
  EXPECT_GT(compared, 80);
}

// The bound must use the cheaper of B, or I and W: a schedule may use either.
TEST(PlanPartitionSearch, MatchesBruteForceIfOneKindOfBackwardIsMuchCheaper) {
  int compared = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    auto problem = random_problem(random, 4, 3);
    if (!problem) continue;
    for (Layer& layer : problem->layers) {
      StageCosts& costs = layer.costs;
      costs.backward.reset();
      if (!info_of(problem->kind).splits_backward) costs.backward = costs.input + costs.weight;
      costs.weight = 30 * (1 + costs.weight);
    }
    problem->options.memory_cap.reset();
    expect_best_partition(*problem, seed);
    ++compared;
  }
  EXPECT_GT(compared, 80);
}

TEST(PlanPartitionSearch, OneStageHasAllLayers) {
  const std::vector<Layer> layers{layer(1), layer(2), layer(3)};
  for (const schedule::SendMode mode : schedule::kSendModes) {
    const schedule::Program program = make_program(schedule::make_schedule("1F1B", {1, 1, 4}), mode);
    const PartitionResult found = search_partition(layers, program, {}, std::nullopt, {0, 3});
    EXPECT_TRUE(found.exact);
    EXPECT_EQ(found.first_layer, (Boundaries{0, 3}));
  }
}

TEST(PlanPartitionSearch, MatchesBruteForceForEvaluationAndSkipEdges) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    Problem problem;
    const bool trains = seed % 2 == 0;
    const int ranks = 3 + static_cast<int>(random() % 2);
    problem.shape = {ranks, 1, 2 + static_cast<int>(random() % 4)};
    for (int i = 0; i < ranks + 4; ++i) {
      problem.layers.push_back(layer((1 + static_cast<double>(random() % 20)) / 64));
      problem.layers.back().costs.output_bytes = random() % 9;
    }
    problem.links.link = {.latency = 1.0 / 64, .bandwidth = 128};
    schedule::LowerOptions options;
    if (trains) {
      options.skips = {{StageId(0), StageId(ranks - 1)}};
      problem.links.skip_bytes[{StageId(0), StageId(ranks - 1)}] = 40;
    }
    const auto kind = trains ? schedule::ScheduleKind::OneFOneB : schedule::ScheduleKind::ForwardOnly;
    const schedule::Program program =
        make_program(make_schedule(kind, problem.shape), schedule::SendMode::Buffered, options);
    const PartitionResult found = search_partition(problem.layers, program, problem.links, std::nullopt,
                                                   even_boundaries(ranks + 4, ranks));
    EXPECT_TRUE(found.exact) << "seed " << seed;
    const double least = least_score(problem, program).second;
    EXPECT_NEAR(score(problem, program, found.first_layer).second, least, 1e-9 * least) << "seed " << seed;
  }
}

// There are too many partitions to evaluate all of them, but the bound excludes most: with a weaker bound,
// the budget of the search does not suffice for these models.
TEST(PlanPartitionSearch, BoundMakesSearchOfMediumModelsExact) {
  struct Medium {
    const char* schedule;
    schedule::ScheduleShape shape;
    int layers;
    bool weights;
    std::vector<unsigned> seeds;
  };
  const std::vector<Medium> models{{"1F1B", {8, 1, 8}, 32, false, {2, 4, 5, 6}},
                                   {"1F1B", {6, 1, 8}, 30, true, {1, 2, 5}},
                                   {"Interleaved1F1B", {4, 2, 4}, 24, false, {1, 3, 4, 5}},
                                   {"ZBVZeroBubble", {4, 2, 8}, 26, false, {4}},
                                   {"ZBVZeroBubble", {4, 2, 8}, 26, true, {5, 6}}};
  for (const auto& [name, shape, count, weights, seeds] : models) {
    const schedule::Program program =
        make_program(schedule::make_schedule(name, shape), schedule::SendMode::Buffered);
    for (const unsigned seed : seeds) {
      std::mt19937 random(seed);
      std::vector<Layer> layers;
      for (int i = 0; i < count; ++i) {
        layers.push_back(layer(1 + static_cast<double>(random() % 20)));
        if (!weights) layers.back().costs.weight = 0;
      }
      const Boundaries even = even_boundaries(count, shape.num_stages());
      EXPECT_TRUE(search_partition(layers, program, {}, std::nullopt, even).exact)
          << name << " seed " << seed;
    }
  }
}

// Two descents alone do not achieve this; the restarts do.
TEST(PlanPartitionSearch, IsNoWorseThanLocalSearchesFromRandomPartitions) {
  const int count = 40, ranks = 10;
  const schedule::Program program =
      make_program(schedule::make_schedule("1F1B", {ranks, 1, 10}), schedule::SendMode::Buffered);
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    Problem problem;
    for (int i = 0; i < count; ++i) problem.layers.push_back(layer(1 + static_cast<double>(random() % 20)));
    const Boundaries even = even_boundaries(count, ranks);
    const PartitionResult found = search_partition(problem.layers, program, {}, std::nullopt, even);
    EXPECT_FALSE(found.exact);
    const double time = score(problem, program, found.first_layer).second;
    for (int start = 0; start < 12; ++start) {
      Boundaries boundaries = even;
      for (std::size_t b = 1; b + 1 < boundaries.size(); ++b) {
        const int low = boundaries[b - 1] + 1, high = boundaries[b + 1] - 1;
        boundaries[b] = low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
      }
      EXPECT_LE(time, local_search(problem, program, boundaries).second) << "seed " << seed;
    }
  }
}

TEST(PlanPartitionSearch, LargeModelGetsGoodInexactPartition) {
  Problem problem;
  std::mt19937 random(1);
  for (int i = 0; i < 48; ++i) problem.layers.push_back(layer(1 + static_cast<double>(random() % 20)));
  problem.shape = {8, 1, 12};
  const schedule::Program program = problem.program();
  Boundaries even;
  for (int s = 0; s <= 8; ++s) even.push_back(6 * s);
  const PartitionResult found = search_partition(problem.layers, program, {}, std::nullopt, even);
  EXPECT_FALSE(found.exact);
  ASSERT_EQ(found.first_layer.size(), 9u);
  EXPECT_EQ(found.first_layer.front(), 0);
  EXPECT_EQ(found.first_layer.back(), 48);
  EXPECT_TRUE(std::is_sorted(found.first_layer.begin(), found.first_layer.end(), std::less_equal<>()));
  const double time = score(problem, program, found.first_layer).second;
  EXPECT_LE(time, local_search(problem, program, even).second);
  // A second search starts from the result of the first one and is never worse.
  const PartitionResult again =
      search_partition(problem.layers, program, {}, std::nullopt, found.first_layer);
  EXPECT_LE(score(problem, program, again.first_layer).second, time);
}

TEST(PlanPartitionSearch, IsNeverWorseThanLocalSearch) {
  expect_no_worse_than_local_search(1000, 1050);
}

TEST(PlanPartitionSearch, StopsAtItsBudgetForLargeModels) {
  Problem problem;
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) problem.layers.push_back(layer(1 + static_cast<double>(random() % 20)));
  problem.options = {.ranks = 16,
                     .microbatches = {64},
                     .stages_per_rank = {1, 4},
                     .schedules = {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::Interleaved1F1B},
                     .recomputation = false};
  for (const Plan& plan : plan_layers(problem.layers, {}, problem.options).plans) {
    EXPECT_EQ(plan.first_layer.size(), static_cast<std::size_t>(16 * plan.stages_per_rank + 1));
    EXPECT_TRUE(std::is_sorted(plan.first_layer.begin(), plan.first_layer.end(), std::less_equal<>()));
  }
}

}  // namespace
}  // namespace penstock::plan
