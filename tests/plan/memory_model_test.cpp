// The memory of a rank over time, compared with values computed by hand.
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/lower.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace penstock::plan {
namespace {

using schedule::Action;
using testing::HasSubstr;

//! One rank that runs these computations of two stages at most.
schedule::Program program_of(const schedule::ActionList& list, int stages, int microbatches,
                             const schedule::LowerOptions& options = {}) {
  const schedule::Schedule schedule{
      "hand", schedule::Placement::make(1, stages, schedule::PlacementStyle::Loop), microbatches, {list}};
  return make_program(schedule, schedule::SendMode::Buffered, options);
}

//! The samples as `time:bytes …`. An allocation after a free at the same time makes one sample.
std::string samples(const schedule::Program& program, const Costs& costs) {
  const Simulation result = simulate(program, costs);
  std::string text;
  for (const schedule::MemorySample& sample : result.timeline.memory[0]) {
    text += (text.empty() ? "" : " ") + std::to_string(static_cast<int>(sample.time)) + ":" +
            std::to_string(sample.bytes);
  }
  return text;
}

const StageId kStage0(0), kStage1(1);
const MicrobatchId kBatch0(0), kBatch1(1);

const StageCosts kVisible{.forward = 1,
                          .input = 1,
                          .weight = 1,
                          .activation_bytes = 100,
                          .weight_bytes = 10,
                          .input_bytes = 1,
                          .parameter_bytes = 1000};  // each term of a sum shows

TEST(PlanMemoryModel, HoldsMemoryFromForwardUntilInputAndWeightBackward) {
  const schedule::Program program =
      program_of({Action::forward(kStage0, kBatch0), Action::forward(kStage0, kBatch1),
                  Action::backward_input(kStage0, kBatch0), Action::backward_weight(kStage0, kBatch0),
                  Action::backward_input(kStage0, kBatch1), Action::backward_weight(kStage0, kBatch1)},
                 1, 2);
  const Costs costs = Costs::uniform(1, kVisible);
  // The I of a microbatch frees its activations, its W the rest.
  EXPECT_EQ(samples(program, costs), "0:1110 1:1220 3:1120 4:1110 5:1010 6:1000");
  const Simulation result = simulate(program, costs);
  EXPECT_EQ(result.ranks[0].peak_memory, 1220u);
  EXPECT_EQ(result.ranks[0].peak_at, 1);
  // With recomputation, F keeps the input, and I computes the activations again.
  EXPECT_EQ(samples(program, with_recomputation(costs)), "0:1110 1:1111 2:1112 4:1011 5:1111 7:1010 8:1000");
  EXPECT_EQ(simulate(program, with_recomputation(costs)).step_time, 8);
}

TEST(PlanMemoryModel, FullBackwardFreesEverything) {
  const schedule::Program program =
      program_of({Action::forward(kStage0, kBatch0), Action::forward(kStage0, kBatch1),
                  Action::backward(kStage0, kBatch0), Action::backward(kStage0, kBatch1)},
                 1, 2);
  const Costs costs = Costs::uniform(1, kVisible);
  EXPECT_EQ(samples(program, costs), "0:1110 1:1220 4:1110 6:1000");
  EXPECT_EQ(samples(program, with_recomputation(costs)), "0:1110 1:1111 2:1112 5:1111 8:1000");
}

TEST(PlanMemoryModel, OverlapHoldsMemoryOfBothParts) {
  const schedule::Program program =
      program_of({Action::forward(kStage0, kBatch0),
                  Action::overlap(Action::forward(kStage0, kBatch1), Action::backward(kStage0, kBatch0)),
                  Action::backward(kStage0, kBatch1)},
                 1, 2);
  EXPECT_EQ(samples(program, Costs::uniform(1, kVisible)), "0:1110 1:1220 4:1110 6:1000");
}

TEST(PlanMemoryModel, ForwardsOfEvaluationKeepNothing) {
  const schedule::Program program =
      program_of({Action::forward(kStage0, kBatch0), Action::forward(kStage0, kBatch1)}, 1, 2);
  const Costs costs = Costs::uniform(1, kVisible);
  EXPECT_EQ(samples(program, costs), "0:1110 1:1110 2:1000");
  // A stage that recomputes counts only the input of the microbatch.
  EXPECT_EQ(samples(program, with_recomputation(costs)), "0:1001 1:1001 2:1000");
}

TEST(PlanMemoryModel, ReshardFreesBeforeUnshardAllocates) {
  // One stage at a time is unsharded; the RESHARD of one and the UNSHARD of the other happen at time 1.
  const schedule::Program program =
      program_of({Action::forward(kStage0, kBatch0), Action::forward(kStage1, kBatch0),
                  Action::backward(kStage1, kBatch0), Action::backward(kStage0, kBatch0)},
                 2, 1, {.max_active_stages = 1});
  const StageCosts each{
      .activation_bytes = 1, .gradient_bytes = 10, .optimizer_bytes = 5, .unsharded_bytes = 100};
  const Costs costs = Costs::uniform(2, each);
  EXPECT_EQ(simulate(program, costs).ranks[0].peak_memory, 30u + 100 + 2);
  EXPECT_EQ(samples(program, costs), "0:131 1:132 4:131 4:131 6:130 6:30");
}

TEST(PlanMemoryModel, RejectsTotalsAbove63Bits) {
  const schedule::Program program =
      program_of({Action::forward(kStage0, kBatch0), Action::backward(kStage0, kBatch0),
                  Action::forward(kStage0, kBatch1), Action::backward(kStage0, kBatch1)},
                 1, 2);
  const auto message = [&](const StageCosts& each) {
    return test::error_message<UsageError>([&] { simulate(program, Costs::uniform(1, each)); });
  };
  const std::uint64_t most = 9'000'000'000'000'000'000U;
  EXPECT_EQ(message({.activation_bytes = 0, .parameter_bytes = most}), "no error");
  EXPECT_THAT(message({.activation_bytes = 0, .parameter_bytes = most + 4096}),
              HasSubstr("overflow 63 bits"));
  // Everything that is allocated and freed over the step counts: 4 times the activations.
  EXPECT_EQ(message({.activation_bytes = most / 4}), "no error");
  EXPECT_THAT(message({.activation_bytes = most / 4 + 4096}), HasSubstr("overflow 63 bits"));
}

}  // namespace
}  // namespace penstock::plan
