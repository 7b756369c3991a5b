// Faults: if one rank throws, every rank raises an error with the cause, and can continue in a rebuilt world.
#include "runtime/support/kill.h"
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/error.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace penstock::test {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr int kMicrobatches = 4;
constexpr int kRows = 8;

// The documented limit, with room for a busy machine.
constexpr std::chrono::seconds kPromised{5}, kRoomForOthers{5};

enum class FaultLocation { Forward, Backward, Loss, Shape };

// Stage 1 (or the loss) fails at microbatch 2.
PipelineModel failing_model(FaultLocation location) {
  PipelineModel model = mlp();
  const auto good = model.make;
  model.make = [good, location](int stages) {
    auto modules = good(stages);
    const auto inner = modules[1];
    const auto calls = std::make_shared<int>(0);
    modules[1] = runtime::make_stage_module(
        nullptr,
        [inner, calls, location](const value::Args& args,
                                 const value::Kwargs& kwargs) -> runtime::StageResult {
          runtime::StageResult result = inner->forward(args, kwargs);
          if ((*calls)++ != 2) return result;
          if (location == FaultLocation::Forward) throw std::runtime_error("injected failure");
          if (location == FaultLocation::Shape) return result.output.toTensor().narrow(1, 0, 2);
          if (location == FaultLocation::Backward) {
            result.output.toTensor().register_hook([](const at::Tensor& grad) -> at::Tensor {
              if (grad.defined()) throw std::runtime_error("injected failure");
              return grad;
            });
          }
          return result;
        });
    return modules;
  };
  if (location == FaultLocation::Loss) {
    const auto calls = std::make_shared<std::atomic<int>>(0);
    model.loss = [loss = model.loss, calls](const c10::IValue& output, const c10::IValue& target,
                                            const value::Kwargs& more) {
      if ((*calls)++ == 2) throw std::runtime_error("injected failure");
      return loss(output, target, more);
    };
  }
  return model;
}

struct Fault {
  FaultLocation location;
  schedule::ScheduleKind kind;
  int rank;            // the failing call
  const char* action;  // the failing call
};

class RuntimeFault : public ::testing::TestWithParam<Fault> {};

TEST_P(RuntimeFault, ReachesEveryRankAndTrainingContinuesInRebuiltWorld) {
  at::set_num_threads(1);
  const Fault fault = GetParam();
  const PipelineModel model = failing_model(fault.location), good = mlp();
  const DenseRun dense = run_dense(good, kRanks, kMicrobatches, kRows, 1, 0);
  std::vector<std::string> seen(kRanks);
  comm::run_thread_ranks(kRanks, [&](comm::World& world) {
    const auto rank = world.rank().index();
    const auto start = Clock::now();
    try {
      runtime::PipelineSchedule pipeline(stages_for(model, world.group(), fault.kind, 1), fault.kind,
                                         kMicrobatches, options_for(model, kRanks));
      // A rank that finished before the fault learns of it in its next call.
      for (int step = 0; step < 2; ++step) step_on(pipeline, model.batch(kRows));
      throw std::logic_error("the step should have failed");
    } catch (const PeerFailed& e) {
      seen[rank] = e.what();
      CHECK_SAME(e.peer().value, fault.rank);
    } catch (const Error& e) {
      seen[rank] = e.what();
      CHECK_SAME(static_cast<int>(rank), fault.rank);
      CHECK_SAME(e.context().action, std::string(fault.action));
    }
    CHECK_THAT(Clock::now() - start < kPromised + kRoomForOthers);
    world.rebuild();
    expect_dense(good, {fault.kind, 1, kMicrobatches, kRows}, dense, world, 1, 0);
  });
  const std::string cause = fault.location == FaultLocation::Shape ? "6" : "injected failure";
  for (const std::string& text : seen) {
    EXPECT_THAT(text, HasSubstr(cause));
    EXPECT_THAT(text, HasSubstr("microbatch 2"));
    EXPECT_THAT(text,
                HasSubstr("rank " + std::to_string(fault.rank) + ", stage " + std::to_string(fault.rank)));
    EXPECT_THAT(text, HasSubstr("action " + std::string(fault.action)));
    EXPECT_THAT(text, HasSubstr("nearby actions in the schedule: "));
    EXPECT_THAT(text, HasSubstr("[" + std::string(fault.action) + "]"));  // between its neighbors
  }
}

INSTANTIATE_TEST_SUITE_P(
    Locations, RuntimeFault,
    ::testing::Values(Fault{FaultLocation::Forward, schedule::ScheduleKind::OneFOneB, 1, "1F2"},
                      Fault{FaultLocation::Forward, schedule::ScheduleKind::GPipe, 1, "1F2"},
                      Fault{FaultLocation::Backward, schedule::ScheduleKind::OneFOneB, 1, "1B2"},
                      Fault{FaultLocation::Backward, schedule::ScheduleKind::InterleavedZeroBubble, 1, "1I2"},
                      Fault{FaultLocation::Loss, schedule::ScheduleKind::OneFOneB, 2, "2F2"},
                      Fault{FaultLocation::Shape, schedule::ScheduleKind::GPipe, 1, "1SEND_F2"}));

TEST(RuntimeKilledRank, IsReportedByOtherRanksWithinFiveSeconds) {
  kill_at_random(10, 1);
}

}  // namespace
}  // namespace penstock::test
