// An exported transformer trained over tensor-parallel ranks, with a plan found in its graph or given
// explicitly, compared with one rank.
#include "support/error_message.h"
#include "support/temp_dir.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/train/trainer.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::train {
namespace {

using schedule::ScheduleKind;

using testing::HasSubstr;

const std::string kArchive = PENSTOCK_SOURCE_DIR "/tests/parallel/archives/transformer";

RunOptions twenty_steps(const ParallelOptions& parallel) {
  RunOptions options;
  options.parallel = parallel;
  options.steps = 20;
  options.batch = 8;
  options.grad_clip = 0.7;
  options.learning_rate.peak = 0.004;
  return options;
}

std::vector<double> losses_of(const RunOptions& options, const parallel::ParallelPlan& plan = {}) {
  std::vector<double> losses;
  comm::run_thread_ranks(options.parallel.ranks(), [&](comm::World& world) {
    const ArchiveModel model = archive_model({.file = kArchive + ".pt2", .tensor_plan = plan});
    const auto data = tensor_data(checkpoint::load_safetensors(kArchive + ".safetensors"),
                                  {.positional = model.positional, .keywords = model.keywords});
    const RunResult result = run(world, *model.model, *data, options);
    if (world.rank().value == 0) losses = result.losses;
  });
  return losses;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, std::size_t from = 0) {
  ASSERT_EQ(got.size() + from, want.size());
  for (std::size_t i = from; i < want.size(); ++i) EXPECT_NEAR(got[i - from], want[i], 1e-4 * want[i]) << i;
}

TEST(TrainArchiveTensorParallel, MatchesLossesOfOneRank) {
  at::set_num_threads(1);
  const auto alone = losses_of(twenty_steps({.schedule = ScheduleKind::GPipe, .microbatches = 2}));
  EXPECT_LT(alone[19], alone[0] - 0.3);
  for (const ParallelOptions& parallel :
       {ParallelOptions{.tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 2},
        ParallelOptions{.tp = 4, .schedule = ScheduleKind::GPipe, .microbatches = 2},
        ParallelOptions{.pp = 2, .tp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 4},
        ParallelOptions{.pp = 2, .tp = 2, .schedule = ScheduleKind::ZBVZeroBubble, .microbatches = 4},
        ParallelOptions{.tp = 2, .dp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 1}}) {
    SCOPED_TRACE(to_string(parallel.schedule) + " pp " + std::to_string(parallel.pp) + " tp " +
                 std::to_string(parallel.tp) + " dp " + std::to_string(parallel.dp));
    expect_near(losses_of(twenty_steps(parallel)), alone);
  }
}

TEST(TrainArchiveTensorParallel, AcceptsExplicitPlan) {
  at::set_num_threads(1);
  const auto alone = losses_of(twenty_steps({.schedule = ScheduleKind::GPipe, .microbatches = 2}));
  const RunOptions two = twenty_steps({.tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 2});
  expect_near(losses_of(two, {{"blocks.*.mlp.gate", parallel::ColwiseParallel()},
                              {"blocks.*.mlp.up", parallel::ColwiseParallel()},
                              {"blocks.*.mlp.down", parallel::RowwiseParallel()},
                              {"token", parallel::RowwiseParallel()},
                              {"blocks.*.norm?", parallel::SequenceParallel()}}),
              alone);
  const auto error = [](const RunOptions& options, const parallel::ParallelPlan& plan) {
    return test::error_message<UsageError>([&] { losses_of(options, plan); });
  };
  EXPECT_THAT(error(two, {{"blocks.*.mpl.up", parallel::ColwiseParallel()}}), HasSubstr("blocks.*.mpl.up"));
  EXPECT_THAT(
      error(twenty_steps({.pp = 2, .tp = 2, .microbatches = 2}), {{"token", parallel::RowwiseParallel()}}),
      HasSubstr("several stages"));
}

TEST(TrainArchiveTensorParallel, ResumesInOtherTopologies) {
  at::set_num_threads(1);
  const auto alone = losses_of(twenty_steps({.schedule = ScheduleKind::GPipe, .microbatches = 2}));
  for (const auto& [first, then] :
       {std::pair{ParallelOptions{.tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 2},
                  ParallelOptions{.pp = 2}},
        std::pair{ParallelOptions{.pp = 2},
                  ParallelOptions{.tp = 4, .schedule = ScheduleKind::GPipe, .microbatches = 2}}}) {
    const test::TempDir dir;
    RunOptions options = twenty_steps(first);
    options.checkpoint.directory = dir.path();
    options.steps = 10;
    losses_of(options);
    options.parallel = then;
    options.steps = 20;
    options.checkpoint.resume = true;
    expect_near(losses_of(options), alone, 10);
  }
}

}  // namespace
}  // namespace penstock::train
