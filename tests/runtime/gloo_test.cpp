// The executor over Gloo processes: every schedule on 4 ranks, and a new world after a fault in the old one.
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"
#include "support/process_ranks.h"

#include <penstock/runtime/error.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <iostream>

namespace penstock::test {
namespace {

constexpr int kMicrobatches = 8;
constexpr int kRows = 18;  // microbatches of 3 and of 2 rows
constexpr int kSteps = 2;

const RankFunction every_schedule("every_schedule", [] {
  at::set_num_threads(1);
  comm::World world = comm::init();
  const PipelineModel model = mlp();
  int held = 0;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    if (!info.has_backward) continue;
    for (const int per_rank : {1, 2}) {
      const Case test{info.kind, per_rank, kMicrobatches, kRows};
      try {
        check_shape(info.kind, {world.size(), per_rank, kMicrobatches});
      } catch (const UsageError&) {
        continue;  // requires another number of stages per rank
      }
      const DenseRun dense = run_dense(model, world.size() * per_rank, kMicrobatches, kRows, kSteps, 3);
      expect_dense(model, test, dense, world, kSteps, 3);
      ++held;
      break;
    }
  }
  std::cout << "held " << held << std::endl;
  return 0;
});

TEST(RuntimeGlooProcesses, RunEveryScheduleOnFourRanks) {
  const RanksOutcome outcome = run_process_ranks("every_schedule", 4);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
  int with_backward = 0;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos())
    with_backward += info.has_backward ? 1 : 0;
  for (const auto& lines : outcome.lines)
    EXPECT_EQ(lines.back(), "held " + std::to_string(with_backward)) << outcome.text();
}

const RankFunction rebuilt("rebuilt", [] {
  at::set_num_threads(1);
  comm::World world = comm::init();
  const PipelineModel good = mlp();
  PipelineModel model = good;
  model.make = [&good](int stages) {
    auto modules = good.make(stages);
    modules[1] = runtime::make_stage_module(
        nullptr,
        [inner = modules[1], calls = 0](const value::Args& args, const value::Kwargs& kwargs) mutable {
          if (calls++ == 3) throw std::runtime_error("injected failure");
          return inner->forward(args, kwargs);
        });
    return modules;
  };
  for (int round = 0; round < 2; ++round) {  // a world can be rebuilt more than once
    try {
      runtime::PipelineSchedule pipeline(
          stages_for(model, world.group(), schedule::ScheduleKind::OneFOneB, 1), "1F1B", kMicrobatches,
          options_for(model, world.size()));
      for (int step = 0; step < 2; ++step) step_on(pipeline, model.batch(kRows));
      throw std::logic_error("the step should have failed");
    } catch (const PeerFailed& e) {
      CHECK_SAME(e.peer().value, 1);
      CHECK_THAT(e.cause().find("injected failure") != std::string::npos);
    } catch (const runtime::StageError& e) {
      CHECK_SAME(world.rank().value, 1);
      CHECK_SAME(e.context().action, std::string("1F3"));
    }
    world.rebuild();
    const DenseRun dense = run_dense(good, world.size(), kMicrobatches, kRows, kSteps, 0);
    expect_dense(good, {schedule::ScheduleKind::OneFOneB, 1, kMicrobatches, kRows}, dense, world, kSteps, 0);
  }
  std::cout << "rebuilt" << std::endl;
  return 0;
});

TEST(RuntimeGlooProcesses, ContinueInRebuiltWorldAfterFault) {
  const RanksOutcome outcome = run_process_ranks("rebuilt", 3);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
  for (const auto& lines : outcome.lines) EXPECT_EQ(lines.back(), "rebuilt") << outcome.text();
}

// Batches that grow and shrink: over Gloo, a receive of the wrong size would terminate the process.
const RankFunction growing("growing", [] {
  at::set_num_threads(1);
  comm::World world = comm::init();
  const PipelineModel model = mlp();
  const auto make = [&](runtime::ShapeMode mode) {
    runtime::PipelineOptions options = options_for(model, world.size());
    options.shapes = mode;
    return runtime::PipelineSchedule(stages_for(model, world.group(), schedule::ScheduleKind::OneFOneB, 1),
                                     "1F1B", 4, options);
  };
  for (const runtime::ShapeMode mode : {runtime::ShapeMode::Inferred, runtime::ShapeMode::Dynamic}) {
    runtime::PipelineSchedule pipeline = make(mode);
    for (const int rows : {8, 40, 7, 8, 13}) {
      const runtime::StepResult result = step_on(pipeline, model.batch(rows));
      if (world.rank().value == world.size() - 1) CHECK_SAME(result.outputs.toTensor().size(0), rows);
    }
  }
  runtime::PipelineSchedule pipeline = make(runtime::ShapeMode::Static);
  step_on(pipeline, model.batch(8));
  try {
    step_on(pipeline, model.batch(40));
  } catch (const Error& e) {
    std::cout << e.message() << std::endl;
  }
  return 0;
});

TEST(RuntimeGlooProcesses, AcceptChangingBatchSizesUnlessShapesAreStatic) {
  const RanksOutcome outcome = run_process_ranks("growing", 2);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
  for (const auto& lines : outcome.lines) {
    ASSERT_FALSE(lines.empty()) << outcome.text();
    EXPECT_NE(
        lines.back().find("the inputs changed after the first step, and this pipeline's shapes are static"),
        std::string::npos)
        << outcome.text();
  }
}

}  // namespace
}  // namespace penstock::test
