// Bitwise guarantees of parallel training. A sum of two numbers has only one order, and dividing by two or
// four does not round. Therefore two replicas, in any schedule, replicated or sharded, have exactly the
// gradients of two independent processes, and a restarted run repeats its bits.
#include "parallel/dense_gpt.h"
#include "parallel/three_axis_run.h"
#include "support/check.h"
#include "support/mesh_ranks.h"

#include <penstock/comm/thread_ranks.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

namespace penstock::test {
namespace {

constexpr Data kDataParallel[] = {Data::Replicated, Data::Sharded, Data::ShardedGradients,
                                  Data::ShardedOptimizer};

//! Throws if any bit differs.
void expect_bits(const std::string& what, const Tensors& actual, const Tensors& expected) {
  for (const auto& [name, value] : actual) {
    const at::Tensor& want = expected.at(name);
    const bool same = value.defined() == want.defined() && (!want.defined() || at::equal(value, want));
    if (!same) {
      const double far = value.defined() && want.defined() ? difference(value, want) : -1;
      throw std::runtime_error(what + " " + name + " has other bits, by " + std::to_string(far));
    }
  }
}

TEST(ParallelBitwise, TwoReplicasMatchTwoProcessesInEverySchedule) {
  const Batch batch = batch_of(0);
  int runs = 0;
  for (const Kind kind : {Kind::Plain, Kind::Frozen}) {
    std::map<bool, Tensors> means;  // by the order of microbatches
    for (const bool backwards : {false, true}) {
      Tensors& mean = means[backwards];
      const auto half = [&](std::size_t i) {
        return microbatch_gradients(kind, {batch.inputs.chunk(2)[i], batch.targets.chunk(2)[i]}, backwards);
      };
      mean = half(0);
      const Tensors second = half(1);
      for (auto& [name, grad] : mean) {
        if (grad.defined()) grad = (grad + second.at(name)) / 2;
      }
    }
    for (const Row& row : schedules(2)) {
      for (const Data data : kDataParallel) {
        if (kind == Kind::Frozen && row.stages_per_rank == 2 && data == Data::Replicated) continue;  // enough
        SCOPED_TRACE(row.text() + ", " + text(kind) + ", " + text(data));
        ++runs;
        // LoopedBFS runs its backward passes from the last microbatch to the first.
        const Tensors& want = means.at(row.schedule == schedule::ScheduleKind::LoopedBFS);
        EXPECT_NO_THROW(comm::run_thread_ranks(4, [&](comm::World& world) {
          const ThreeAxisGpt rank(world, {.pp = 2, .dp = 2}, row.schedule, row.stages_per_rank, kind, data);
          runtime::PipelineSchedule pipeline(rank.stages, row.schedule, kMicrobatches, rank.options());
          const Batch own = rank.local_rows(batch);
          pipeline.step({own.inputs}, own.targets);
          expect_bits("gradient of", rank.gradients(), want);
        }));
      }
    }
  }
  EXPECT_GT(runs, 40);
}

struct Bits {
  Tensors gradients, parameters;
};

//! Three steps of AdamW, with the gradients of the first. With `same`, every replica gets the rows of the
//! first one.
Bits train_bits(Axes axes, Row row, Kind kind, Data data, bool same) {
  Bits all;
  std::mutex mutex;
  comm::run_thread_ranks(axes.ranks(), [&](comm::World& world) {
    const ThreeAxisGpt rank(world, axes, row.schedule, row.stages_per_rank, kind, data);
    runtime::PipelineSchedule pipeline(rank.stages, row.schedule, kMicrobatches, rank.options());
    torch::optim::AdamW optimizer = adamw(rank.optimizer_parameters());
    for (int step = 0; step < kTrainSteps; ++step) {
      optimizer.zero_grad();
      const Batch batch = batch_of(step);
      const Batch own =
          same ? Batch{batch.inputs.chunk(2)[0], batch.targets.chunk(2)[0]} : rank.local_rows(batch);
      pipeline.step({own.inputs}, own.targets);
      if (step == 0) {
        const Tensors mine = rank.gradients();
        const std::lock_guard lock(mutex);
        all.gradients.insert(mine.begin(), mine.end());
      }
      optimizer.step();
    }
    const Tensors mine = rank.parameters();
    const std::lock_guard lock(mutex);
    all.parameters.insert(mine.begin(), mine.end());
  });
  return all;
}

const std::vector<Row> kSomeSchedules{{schedule::ScheduleKind::OneFOneB, 1},
                                      {schedule::ScheduleKind::ZB1P, 1},
                                      {schedule::ScheduleKind::ZBVZeroBubble, 2},
                                      {schedule::ScheduleKind::DualPipeV, 2}};

// Identical replicas average equal numbers: nothing may change, through all three axes and AdamW.
TEST(ParallelBitwise, IdenticalReplicasMatchSingleReplica) {
  at::set_num_threads(1);
  for (const Row& row : kSomeSchedules) {
    const Bits alone = train_bits({.pp = 2, .tp = 2}, row, Kind::Tied, Data::None, true);
    for (const Data data : kDataParallel) {
      SCOPED_TRACE(row.text() + ", " + text(data));
      const Bits both = train_bits({.pp = 2, .dp = 2, .tp = 2}, row, Kind::Tied, data, true);
      EXPECT_NO_THROW(expect_bits("gradient of", both.gradients, alone.gradients));
      EXPECT_NO_THROW(expect_bits("parameter", both.parameters, alone.parameters));
    }
  }
}

TEST(ParallelBitwise, ShardedMatchesReplicated) {
  at::set_num_threads(1);
  for (const Row& row : kSomeSchedules) {
    const Axes axes{.pp = 2, .dp = 2, .tp = 2};
    const Bits replicated = train_bits(axes, row, Kind::Frozen, Data::Replicated, false);
    for (const Data data : {Data::Sharded, Data::ShardedGradients, Data::ShardedOptimizer}) {
      SCOPED_TRACE(row.text() + ", " + text(data));
      const Bits sharded = train_bits(axes, row, Kind::Frozen, data, false);
      EXPECT_NO_THROW(expect_bits("gradient of", sharded.gradients, replicated.gradients));
      EXPECT_NO_THROW(expect_bits("parameter", sharded.parameters, replicated.parameters));
    }
  }
}

// Buckets and units are laid out once: a restarted run adds in the same order.
TEST(ParallelBitwise, RestartIn3DIsBitwiseEqual) {
  at::set_num_threads(1);
  for (const Data data : kDataParallel) {
    SCOPED_TRACE(text(data));
    const Axes axes{.pp = 2, .dp = 2, .tp = 2};
    const Row row{schedule::ScheduleKind::ZBVZeroBubble, 2};
    const Bits once = train_bits(axes, row, Kind::Tied, data, false),
               again = train_bits(axes, row, Kind::Tied, data, false);
    EXPECT_NO_THROW(expect_bits("parameter", again.parameters, once.parameters));
  }
}

}  // namespace
}  // namespace penstock::test
