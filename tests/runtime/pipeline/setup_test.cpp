// Pipeline errors at setup and at the start of a step, on every rank and with helpful messages.
#include "runtime/support/rank_errors.h"
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/error.h>
#include <penstock/runtime/schedules.h>
#include <penstock/schedule/csv.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace penstock::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

runtime::PipelineSchedule make_mlp(comm::World& world, int microbatches = 4,
                                   runtime::PipelineOptions options = options_for(mlp(), 2)) {
  return {stages_for(mlp(), world.group(), schedule::ScheduleKind::OneFOneB, 1), "1F1B", microbatches,
          std::move(options)};
}

TEST(RuntimeSetup, MismatchReportsFieldAndRank) {
  EXPECT_THAT(
      errors_of(2, [](comm::World& world) { make_mlp(world, world.rank().value == 0 ? 4 : 6); }),
      Each(AllOf(HasSubstr("number of microbatches"), HasSubstr("4 on rank 0"), HasSubstr("6 on rank 1"))));
  EXPECT_THAT(errors_of(2,
                        [](comm::World& world) {
                          runtime::PipelineOptions options = options_for(mlp(), 2);
                          if (world.rank().value == 1) options.shapes = runtime::ShapeMode::Dynamic;
                          make_mlp(world, 4, options);
                        }),
              Each(AllOf(HasSubstr("shape mode"), HasSubstr("dynamic on rank 1"))));
  EXPECT_THAT(errors_of(2,
                        [](comm::World& world) {
                          const auto kind = world.rank().value == 0 ? schedule::ScheduleKind::GPipe
                                                                    : schedule::ScheduleKind::OneFOneB;
                          runtime::PipelineSchedule(stages_for(mlp(), world.group(), kind, 1), kind, 4,
                                                    options_for(mlp(), 2));
                        }),
              Each(AllOf(HasSubstr("schedule"), HasSubstr("GPipe on rank 0"), HasSubstr("1F1B on rank 1"))));
  // Rank 1 has another value for one option.
  struct Difference {
    const char* field;
    void (*change)(runtime::PipelineOptions&);
  };
  for (const Difference& difference :
       {Difference{"scaling of gradients",
                   [](runtime::PipelineOptions& options) { options.scale_grads = false; }},
        Difference{"loss on all ranks",
                   [](runtime::PipelineOptions& options) { options.loss_on_all_ranks = true; }},
        Difference{"shared parameters",
                   [](runtime::PipelineOptions& options) {
                     options.shared = {{{StageId(0), "linear.weight"}, {StageId(1), "linear.weight"}}};
                   }},
        Difference{"seed", [](runtime::PipelineOptions& options) { options.seed = 3; }}}) {
    EXPECT_THAT(errors_of(2,
                          [&](comm::World& world) {
                            runtime::PipelineOptions options = options_for(mlp(), 2);
                            if (world.rank().value == 1) difference.change(options);
                            make_mlp(world, 4, options);
                          }),
                Each(AllOf(HasSubstr(difference.field), HasSubstr("on rank 1"))));
  }
}

TEST(RuntimeSetup, DetectsDifferentTableOnOneRank) {
  EXPECT_THAT(
      errors_of(2,
                [](comm::World& world) {
                  schedule::Schedule schedule = make_schedule(schedule::ScheduleKind::GPipe, {2, 1, 4});
                  if (world.rank().value == 1) std::swap(schedule.ranks[0][0], schedule.ranks[0][1]);
                  runtime::PipelineSchedule(
                      stages_for(mlp(), world.group(), schedule::ScheduleKind::GPipe, 1), schedule,
                      options_for(mlp(), 2));
                }),
      Each(AllOf(HasSubstr("program"), HasSubstr("on rank 1"))));
}

TEST(RuntimeSetup, RejectsInvalidOptions) {
  EXPECT_THAT(errors_of(2, [](comm::World& world) { make_mlp(world, 0); }),
              Each(HasSubstr("0 microbatches")));
  EXPECT_THAT(errors_of(3,
                        [](comm::World& world) {
                          const auto modules = mlp().make(2);
                          const runtime::PipelineStage stage(modules[0], StageId(0), 2, at::kCPU,
                                                             world.group());
                          runtime::PipelineSchedule({stage}, "1F1B", 4, options_for(mlp(), 2));
                        }),
              Each(HasSubstr("more ranks than stages")));
  EXPECT_THAT(
      errors_of(1,
                [](comm::World& world) {
                  const auto modules = mlp().make(2);
                  const runtime::PipelineStage stage(modules[0], StageId(0), 2, at::kCPU, world.group());
                  runtime::PipelineSchedule({stage, stage}, "Interleaved1F1B", 4, options_for(mlp(), 2));
                }),
      Each(HasSubstr("given twice")));
  EXPECT_THAT(errors_of(1,
                        [](comm::World& world) {
                          const auto modules = mlp().make(2);
                          const runtime::PipelineStage stage(modules[0], StageId(0), 2, at::kCPU,
                                                             world.group());
                          runtime::PipelineSchedule({stage}, "Interleaved1F1B", 4, options_for(mlp(), 2));
                        }),
              Each(HasSubstr("missing")));
  EXPECT_THAT(errors_of(2,
                        [](comm::World& world) {
                          const auto modules = mlp().make(2);
                          const int wrong = 1 - world.rank().value;
                          const runtime::PipelineStage stage(modules[0], StageId(wrong), 2, at::kCPU,
                                                             world.group());
                          runtime::PipelineSchedule({stage}, "1F1B", 4, options_for(mlp(), 2));
                        }),
              Each(HasSubstr("places the stage on rank")));
  // One stage on two ranks, another on none.
  EXPECT_THAT(errors_of(2,
                        [](comm::World& world) {
                          const runtime::PipelineStage stage(mlp().make(2)[0], StageId(0), 2, at::kCPU,
                                                             world.group());
                          runtime::PipelineSchedule({stage}, "1F1B", 4, options_for(mlp(), 2));
                        }),
              Each(AllOf(HasSubstr("places the stage on rank 0"), HasSubstr("rank 1, stage 0"))));
  EXPECT_THAT(errors_of(1,
                        [](comm::World& world) {
                          runtime::PipelineStage(mlp().make(2)[0], StageId(2), 2, at::kCPU, world.group());
                        }),
              Each(HasSubstr("no stage 2")));
}

// Custom tables: actions that a stage does not support are found before anything runs.
TEST(RuntimeSetup, RejectsTablesWithUnsupportedActions) {
  struct Wrong {
    const char* rows;  // of rank 0; those of rank 1 are valid
    const char* text;
  };
  for (const Wrong& wrong :
       {Wrong{"0F0,0F1,0B0,0B7", "0B7 names microbatch 7, but there are only 2"},
        Wrong{"0B0,0F0,0F1,0B1", "0B0 needs the output of stage 0 of microbatch 0"},
        Wrong{"0F0,0F1,0B0,0B1,0B1", "0B1 repeats the backward pass of an earlier B, I or W"},
        Wrong{"0F0,0F1,0F1,0B0,0B1", "0F1 appears twice"},
        Wrong{"0F0,0F1,0W0,0I0,0B1", "0W0 needs the input gradient of stage 0 of microbatch 0"},
        Wrong{"0F0,0F1,0B0", "stage 0 has no B or I for microbatch 1"}}) {
    EXPECT_THAT(errors_of(2,
                          [&](comm::World& world) {
                            std::istringstream text(std::string(wrong.rows) + "\n1F0,1F1,1B0,1B1\n");
                            const schedule::Schedule schedule =
                                schedule::read_csv(text, {.microbatches = 2}).schedule();
                            runtime::PipelineSchedule(
                                stages_for(mlp(), world.group(), schedule::ScheduleKind::OneFOneB, 1),
                                schedule, options_for(mlp(), 2));
                          }),
                Each(HasSubstr(wrong.text)));
  }
}

TEST(RuntimeStep, RejectsMissingInputs) {
  EXPECT_THAT(errors_of(2,
                        [](comm::World& world) {
                          runtime::PipelineSchedule pipeline = make_mlp(world);
                          const at::NoGradGuard no_grad;
                          step_on(pipeline, mlp().batch(8));
                        }),
              Each(HasSubstr("gradient mode is disabled")));
  EXPECT_THAT(errors_of(2,
                        [](comm::World& world) {
                          TestBatch batch = mlp().batch(8);
                          batch.target = {};
                          step_on(make_mlp(world), batch);
                        }),
              Each(HasSubstr("target")));
  EXPECT_THAT(errors_of(2, [](comm::World& world) { make_mlp(world).step({}, mlp().batch(8).target); }),
              Each(HasSubstr("no arguments")));
  EXPECT_THAT(errors_of(2,
                        [](comm::World& world) {
                          TestBatch batch = mlp().batch(8);
                          batch.options.kwargs["msk"] = at::ones({8});
                          step_on(make_mlp(world), batch);
                        }),
              Each(HasSubstr("'msk'")));
}

TEST(RuntimeStep, RejectsCallsThatDifferAcrossRanks) {
  EXPECT_THAT(errors_of(2,
                        [](comm::World& world) {
                          runtime::PipelineSchedule pipeline = make_mlp(world);
                          world.rank().value == 0 ? step_on(pipeline, mlp().batch(8))
                                                  : eval_on(pipeline, mlp().batch(8));
                        }),
              Each(AllOf(HasSubstr("rank 0 runs step 0"), HasSubstr("rank 1 runs evaluation 0"))));
}

TEST(RuntimeShapes, MayChangeBetweenSteps) {
  at::set_num_threads(1);
  comm::run_thread_ranks(2, [](comm::World& world) {
    runtime::PipelineSchedule pipeline = make_mlp(world);
    for (const int rows : {8, 12, 7, 8}) {
      const runtime::StepResult result = step_on(pipeline, mlp().batch(rows));
      if (world.rank().value == 1) CHECK_SAME(result.outputs.toTensor().size(0), rows);
    }
  });
}

// The errors of all ranks when the inputs of a static pipeline change after the first step.
std::vector<std::string> static_errors(const TestBatch& first, const TestBatch& second) {
  return errors_of(2, [&](comm::World& world) {
    const runtime::StageFunction add = [](const value::Args& args,
                                          const value::Kwargs&) -> runtime::StageResult {
      at::Tensor sum = args[0].toTensor();
      for (std::size_t i = 1; i < args.size(); ++i)
        if (args[i].isTensor()) sum = sum + args[i].toTensor().sum();
      return sum.to(at::kFloat);
    };
    const runtime::PipelineStage stage(runtime::make_stage_module(nullptr, add), StageId(world.rank().value),
                                       2, at::kCPU, world.group());
    runtime::PipelineOptions options;
    options.shapes = runtime::ShapeMode::Static;
    runtime::PipelineSchedule pipeline(stage, "ForwardOnly", 4, options);
    step_on(pipeline, first);
    step_on(pipeline, first);
    eval_on(pipeline, first);  // the same shapes, without gradients
    step_on(pipeline, second);
  });
}

TEST(RuntimeShapes, StaticShapeChangeReportsEveryDifferenceOnEveryRank) {
  const TestBatch first{{at::ones({8, 6}), at::ones({8, 2}), 3}};
  TestBatch second{{at::ones({10, 6}), at::ones({10, 2}), 3}};
  EXPECT_THAT(static_errors(first, second),
              Each(AllOf(HasSubstr("static"), HasSubstr("rank 0"),
                         HasSubstr("args[0] has shape [3, 6], expected [2, 6] (microbatches 0, 1)"),
                         HasSubstr("args[1] has shape [3, 2], expected [2, 2] (microbatches 0, 1)"),
                         HasSubstr("ShapeMode::Inferred"), Not(HasSubstr("cast")))));
  second.args = {at::ones({8, 6}, at::kDouble), at::ones({8, 3}, at::kLong), 4};
  EXPECT_THAT(
      static_errors(first, second),
      Each(AllOf(HasSubstr("args[0] has dtype float64, expected float32 (microbatches 0, 1, 2, 3)"),
                 HasSubstr("args[1] has shape [2, 3], expected [2, 2] and has dtype int64, expected float32"),
                 HasSubstr("args[2] is 4, expected 3"), HasSubstr("cast the inputs"))));
  second.args = {at::ones({8, 6}).requires_grad_(true), at::ones({8, 2})};
  EXPECT_THAT(static_errors(first, second),
              Each(AllOf(HasSubstr("args[0] requires a gradient, expected none"),
                         HasSubstr("args[2] is missing"), HasSubstr("detach"))));
}

// Every rank raises the static-shape error itself. A later error of one rank must still reach the others.
TEST(RuntimeShapes, StaticShapeErrorDoesNotHideLaterErrors) {
  EXPECT_THAT(errors_of(2,
                        [](comm::World& world) {
                          bool throws = false;
                          const runtime::StageFunction forward = [&](const value::Args& args,
                                                                     const value::Kwargs&) {
                            if (throws && world.rank().value == 0)
                              throw std::runtime_error("broken on purpose");
                            return runtime::StageResult(args[0].toTensor());
                          };
                          runtime::PipelineOptions options;
                          options.shapes = runtime::ShapeMode::Static;
                          runtime::PipelineSchedule pipeline(
                              runtime::PipelineStage(runtime::make_stage_module(nullptr, forward),
                                                     StageId(world.rank().value), 2, at::kCPU, world.group()),
                              "ForwardOnly", 4, options);
                          pipeline.eval({at::ones({8, 6})});
                          try {
                            pipeline.eval({at::ones({10, 6})});
                            throw std::logic_error("another shape was accepted");
                          } catch (const ShapeError&) {
                          }
                          throws = true;
                          pipeline.eval({at::ones({8, 6})});
                        }),
              Each(HasSubstr("broken on purpose")));
}

// Rank 1 declares a wrong shape for its input or output.
TEST(RuntimeShapes, UserProvidedShapesAreChecked) {
  const auto promised = value::TreeMeta::of(at::ones({2, 7}));
  for (const bool input : {true, false}) {
    EXPECT_THAT(errors_of(2,
                          [&](comm::World& world) {
                            const int rank = world.rank().value;
                            runtime::StageOptions stage_options;
                            if (rank == 1 && input)
                              stage_options.input = value::TreeMeta::of(value::Args{at::ones({2, 7})});
                            if (rank == 1 && !input) stage_options.output = promised;
                            const runtime::PipelineStage stage(mlp().make(2)[static_cast<std::size_t>(rank)],
                                                               StageId(rank), 2, at::kCPU, world.group(),
                                                               stage_options);
                            try {
                              step_on(runtime::Schedule1F1B(stage, 4, options_for(mlp(), 2)), mlp().batch(8));
                            } catch (const ShapeError& e) {
                              CHECK_SAME(rank, 1);
                              CHECK_SAME(e.context().stage->value, 1);
                              throw;
                            } catch (const PeerFailed&) {
                              CHECK_SAME(rank, 0);
                              throw;
                            }
                          }),
                Each(AllOf(HasSubstr(input ? "input[0] has shape [2, 6], expected [2, 7]"
                                           : "output has shape [2, 6], expected [2, 7]"),
                           HasSubstr("stage 1"), HasSubstr("microbatch 0"), HasSubstr("1F0"))));
  }
}

// The number of columns that stage 0 returns is the first element of its input: what the next stage receives
// depends on values.
std::vector<runtime::PipelineStage> varying_stages(comm::World& world) {
  const runtime::StageFunction first = [](const value::Args& args,
                                          const value::Kwargs&) -> runtime::StageResult {
    const at::Tensor x = args[0].toTensor();
    return x.narrow(1, 0, x.select(1, 0)[0].item<std::int64_t>()) * 2;
  };
  const runtime::StageFunction second = [](const value::Args& args,
                                           const value::Kwargs&) -> runtime::StageResult {
    return args[0].toTensor().sum(1, true);
  };
  const int rank = world.rank().value;
  return {runtime::PipelineStage(runtime::make_stage_module(nullptr, rank == 0 ? first : second),
                                 StageId(rank), 2, at::kCPU, world.group())};
}

TEST(RuntimeShapes, DynamicShapesMayDependOnValues) {
  const at::Tensor x = at::ones({3, 4}) * at::arange(1, 4).unsqueeze(1);
  const auto run = [&](comm::World& world, runtime::ShapeMode mode) {
    runtime::PipelineOptions options;
    options.shapes = mode;
    runtime::PipelineSchedule pipeline(varying_stages(world), "ForwardOnly", 3, options);
    for (int step = 0; step < 2; ++step) {
      const c10::IValue outputs = pipeline.step({x}).outputs;
      if (world.rank().value == 1)
        CHECK_TENSORS(outputs.toTensor(), (2 * x.select(1, 0).square()).unsqueeze(1));
    }
  };
  comm::run_thread_ranks(2, [&](comm::World& world) { run(world, runtime::ShapeMode::Dynamic); });
  EXPECT_THAT(errors_of(2, [&](comm::World& world) { run(world, runtime::ShapeMode::Inferred); }),
              Each(HasSubstr("Dynamic")));
}

}  // namespace
}  // namespace penstock::test
