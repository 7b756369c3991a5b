// Actions as users see them: replaced by their own functions, and as ranges in libtorch's profiler.
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/overlap.h>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

namespace penstock::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using DefaultAction = std::function<void()>;

constexpr int kActionMicrobatches = 4;
constexpr int kActionRows = 8;

runtime::PipelineSchedule make_named(comm::World& world, const runtime::PipelineOptions& options,
                                     const char* name = "1F1B") {
  return {stages_for(mlp(), world.group(), schedule::ScheduleKind::OneFOneB, 1), name, kActionMicrobatches,
          options};
}

TEST(RuntimeReplacedActions, SeeMicrobatchesAndLossesOfStep) {
  const TestBatch batch = mlp().batch(kActionRows);
  const auto inputs = batch.args[0].toTensor().chunk(kActionMicrobatches);
  const auto targets = batch.target.toTensor().chunk(kActionMicrobatches);
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const bool last = world.rank().value == 1;
    int forwards = 0;
    runtime::PipelineOptions options = options_for(mlp(), 2);
    options.execution.custom[schedule::ActionKind::Forward] =
        [&](const schedule::Action& action, const DefaultAction& run_default, const runtime::StepView& view) {
          const auto m = action.microbatch().index();
          if (last) {
            CHECK_THAT(view.args.empty());
            CHECK_TENSORS(view.targets[m].toTensor(), targets[m]);
            CHECK_THAT(!view.losses[m].defined());
          } else {
            CHECK_TENSORS(view.args[m][0].toTensor(), inputs[m]);
            CHECK_THAT(view.targets.empty());
          }
          run_default();
          if (last) CHECK_THAT(view.losses[m].defined());
          ++forwards;
        };
    step_on(make_named(world, options), batch);
    CHECK_SAME(forwards, kActionMicrobatches);
  });
}

// The error of rank 1 of 2 when it replaces actions of `kind`.
std::string error_of(schedule::ActionKind kind, const runtime::ActionFunction& function,
                     const char* name = "1F1B") {
  std::string text;
  comm::run_thread_ranks(2, [&](comm::World& world) {
    runtime::PipelineOptions options = options_for(mlp(), 2);
    if (world.rank().value == 1) options.execution.custom[kind] = function;
    try {
      step_on(make_named(world, options, name), mlp().batch(kActionRows));
    } catch (const ScheduleError& e) {
      if (world.rank().value == 1) text = e.what();
    } catch (const PeerFailed&) {
      CHECK_SAME(world.rank().value, 0);
    }
  });
  return text;
}

TEST(RuntimeReplacedActions, OmittingDefaultBreaksDependencyCheck) {
  const runtime::ActionFunction nothing = [](const schedule::Action&, const DefaultAction&) {};
  EXPECT_THAT(
      error_of(schedule::ActionKind::Forward, nothing),
      AllOf(HasSubstr("before its dependency: the output of stage 1 of microbatch 0"), HasSubstr("1B0")));
  EXPECT_THAT(
      error_of(schedule::ActionKind::RecvForward, nothing),
      AllOf(HasSubstr("before its dependency: the output of stage 0 of microbatch 0, received by stage 1"),
            HasSubstr("1F0")));
  EXPECT_THAT(
      error_of(schedule::ActionKind::Backward, nothing),
      AllOf(HasSubstr("before its dependency: the input gradient of stage 1"), HasSubstr("1SEND_B0")));
  // Omits I: the next dependent action is the send or W.
  EXPECT_THAT(
      error_of(schedule::ActionKind::BackwardInput, nothing, "InterleavedZeroBubble"),
      AllOf(HasSubstr("before its dependency: the input gradient of stage 1"), HasSubstr("microbatch 0")));
}

TEST(RuntimeReplacedActions, CallingDefaultTwiceIsRejected) {
  const runtime::ActionFunction twice = [](const schedule::Action&, const DefaultAction& run_default) {
    run_default();
    run_default();
  };
  EXPECT_THAT(error_of(schedule::ActionKind::Forward, twice),
              AllOf(HasSubstr("second time"), HasSubstr("1F0")));
  EXPECT_THAT(error_of(schedule::ActionKind::Backward, twice),
              AllOf(HasSubstr("second time"), HasSubstr("1B0")));
}

// The actions that `before_action` gets in a step.
std::vector<std::string> followed(comm::World& world, bool at_once, schedule::ActionList& program) {
  std::vector<std::string> calls;
  runtime::PipelineOptions options = options_for(mlp(), 4);
  options.execution.before_action = [&](const schedule::Action& action) {
    calls.push_back(to_string(action));
  };
  if (at_once) options.execution.custom[schedule::ActionKind::Overlap] = runtime::overlap_on_threads();
  constexpr auto kind = schedule::ScheduleKind::DualPipeV;
  runtime::PipelineSchedule pipeline(stages_for(mlp(), world.group(), kind, 2), kind, kActionMicrobatches,
                                     options);
  program = pipeline.program().of(world.rank());
  step_on(pipeline, mlp().batch(kActionRows));
  return calls;
}

TEST(RuntimeFollowedActions, AreThoseOfProgramAndPartsOfOverlaps) {
  comm::run_thread_ranks(2, [](comm::World& world) {
    for (const bool at_once : {false, true}) {
      schedule::ActionList program;
      const std::vector<std::string> calls = followed(world, at_once, program);
      std::vector<std::string> expected;
      for (const schedule::Action& action : program) {
        expected.push_back(to_string(action));
        if (action.kind() != schedule::ActionKind::Overlap) continue;
        expected.push_back(to_string(action.forward_part()));
        expected.push_back(to_string(action.backward_part()));
      }
      CHECK_THAT(expected.size() > program.size());
      CHECK_THAT(calls == expected);
    }
  });
}

// The user ranges that each thread recorded, in order.
std::mutex ranges_mutex;
std::map<std::uint64_t, std::vector<std::string>> ranges;

std::unique_ptr<at::ObserverContext> note_range(const at::RecordFunction& function) {
  const std::lock_guard lock(ranges_mutex);
  ranges[at::RecordFunction::currentThreadId()].emplace_back(function.name());
  return nullptr;
}

TEST(RuntimeProfiler, RecordsRangeForEveryAction) {
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback(note_range).scopes({at::RecordScope::USER_SCOPE}));
  std::vector<std::vector<std::string>> expected(2);
  std::vector<std::uint64_t> threads(2);
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const auto rank = world.rank().index();
    runtime::PipelineSchedule pipeline = make_named(world, options_for(mlp(), 2));
    step_on(pipeline, mlp().batch(kActionRows));
    threads[rank] = at::RecordFunction::currentThreadId();
    for (const schedule::Action& action : pipeline.program().of(world.rank()))
      if (!action.is_idle()) expected[rank].push_back("PP:" + to_string(action));
  });
  at::removeCallback(handle);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranges[threads[rank]], expected[rank]);
    EXPECT_THAT(expected[rank], ::testing::Contains("PP:" + std::to_string(rank) + "F0"));
  }
}

}  // namespace
}  // namespace penstock::test
