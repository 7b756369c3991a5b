// What replicas shard changes where state is stored, never what is computed.
#include "small_run.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

namespace penstock::train {
namespace {

using test::small_run;
using test::with;

// Two replicas: the order of a sum of two numbers does not matter. (The kernel of AdamW rounds the last
// elements of a tensor differently, and shards end elsewhere.)
TEST(TrainSharding, LossesAreBitwiseEqualToReplicatedRun) {
  at::set_num_threads(1);
  for (const char* const schedule : {"GPipe", "1F1B", "ZB1P"}) {
    RunOptions options = with({2, 2, 1, 2, schedule});
    options.optimizer.kind = OptimizerKind::Sgd;
    options.learning_rate.peak = 0.3;
    options.parameters.freeze = {"blocks.1"};
    const RunResult expected = small_run(options, nullptr, true, 0.1);
    for (const Sharding sharding : {Sharding::Optimizer, Sharding::Gradients, Sharding::Full}) {
      SCOPED_TRACE(std::string(schedule) + " " + std::string(to_string(sharding)));
      options.parallel.sharding = sharding;
      const RunResult result = small_run(options, nullptr, true, 0.1);
      EXPECT_EQ(result.losses, expected.losses);
      for (const auto& [name, tensor] : expected.parameters)
        EXPECT_TRUE(at::equal(result.parameters.at(name), tensor)) << name;
    }
  }
}

TEST(TrainSharding, LossesAreBitwiseEqualInEverySchedule) {
  at::set_num_threads(1);
  std::size_t count = 0;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    if (!info.has_backward) continue;
    const std::string name(info.name);
    RunOptions options = with({2, 2, info.default_stages_per_rank, 4, name.c_str()});
    options.steps = 3;
    options.optimizer.kind = OptimizerKind::Sgd;
    options.learning_rate.peak = 0.3;
    const RunResult expected = small_run(options, nullptr, true);
    for (const Sharding sharding : {Sharding::Optimizer, Sharding::Gradients, Sharding::Full}) {
      SCOPED_TRACE(name + " " + std::string(to_string(sharding)));
      options.parallel.sharding = sharding;
      const RunResult result = small_run(options, nullptr, true);
      EXPECT_EQ(result.losses, expected.losses);
      for (const auto& [parameter, tensor] : expected.parameters)
        EXPECT_TRUE(at::equal(result.parameters.at(parameter), tensor)) << parameter;
      ++count;
    }
  }
  EXPECT_GT(count, 24U);
}

// Sums up the gradients and the optimized parameters of a rank before its update.
class StoredBytes : public RankHook {
 public:
  struct Bytes {
    std::uint64_t gradients = 0, optimized = 0;
  };
  explicit StoredBytes(Bytes& bytes) : bytes_(bytes) {}

  void on_phase(RunPhase phase, const RankState& state) override {
    if (phase != RunPhase::Update) return;
    bytes_ = {};
    std::set<const void*> seen;
    for (const auto& [index, stage] : state.stages) {
      for (const value::NamedTensor& item : stage->parameters()) {
        bytes_.optimized += item.tensor.nbytes();
        if (!item.tensor.grad().defined()) continue;
        const c10::Storage& storage = item.tensor.grad().storage();
        if (seen.insert(storage.unsafeGetStorageImpl()).second) bytes_.gradients += storage.nbytes();
      }
    }
  }

 private:
  Bytes& bytes_;
};

// An optimizer has states for the elements of the parameters that it sees.
TEST(TrainSharding, RanksStoreOnlyTheirShards) {
  at::set_num_threads(1);
  constexpr int dp = 4;
  const auto stored = [&](Sharding sharding) {
    RunOptions options = with({1, dp, 1, 2, "1F1B", sharding});
    options.steps = 2;
    std::vector<StoredBytes::Bytes> bytes(dp);
    small_run(options, nullptr, false, 0, [&](Rank rank) {
      return std::make_unique<StoredBytes>(bytes[static_cast<std::size_t>(rank.value)]);
    });
    StoredBytes::Bytes most;
    for (const StoredBytes::Bytes& one : bytes) {
      most.gradients = std::max(most.gradients, one.gradients);
      most.optimized = std::max(most.optimized, one.optimized);
    }
    return most;
  };
  const StoredBytes::Bytes all = stored(Sharding::None);
  const auto expect = [&](Sharding sharding, int gradients) {
    SCOPED_TRACE(to_string(sharding));
    const StoredBytes::Bytes bytes = stored(sharding);
    const auto near = [](std::uint64_t found, std::uint64_t expected) {  // flat shards are padded
      EXPECT_NEAR(static_cast<double>(found), static_cast<double>(expected),
                  0.02 * static_cast<double>(expected));
    };
    near(bytes.optimized, all.optimized / dp);
    near(bytes.gradients, all.gradients / static_cast<std::uint64_t>(gradients));
  };
  expect(Sharding::Optimizer, 1);
  expect(Sharding::Gradients, dp);
  expect(Sharding::Full, dp);
}

}  // namespace
}  // namespace penstock::train
