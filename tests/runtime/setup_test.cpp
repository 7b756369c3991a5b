// What a pipeline refuses at its set-up and at the start of a step, on every rank and with words that help.
#include "runtime/against_dense.h"
#include "runtime/models.h"
#include "runtime/rank_errors.h"
#include "support/check.h"

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

PipelineSchedule make_mlp(World& world, int microbatches = 4,
                          PipelineOptions options = options_for(mlp(), 2)) {
  return {stages_for(mlp(), world.group(), ScheduleKind::OneFOneB, 1), "1F1B", microbatches,
          std::move(options)};
}

TEST(SetUp, DifferencesNameTheFieldAndTheRank) {
  EXPECT_THAT(
      errors_of(2, [](World& world) { make_mlp(world, world.rank().value == 0 ? 4 : 6); }),
      Each(AllOf(HasSubstr("number of microbatches"), HasSubstr("4 on rank 0"), HasSubstr("6 on rank 1"))));
  EXPECT_THAT(errors_of(2,
                        [](World& world) {
                          PipelineOptions options = options_for(mlp(), 2);
                          if (world.rank().value == 1) options.shapes = ShapeMode::Dynamic;
                          make_mlp(world, 4, options);
                        }),
              Each(AllOf(HasSubstr("shape mode"), HasSubstr("dynamic on rank 1"))));
  EXPECT_THAT(
      errors_of(2,
                [](World& world) {
                  const auto kind = world.rank().value == 0 ? ScheduleKind::GPipe : ScheduleKind::OneFOneB;
                  PipelineSchedule(stages_for(mlp(), world.group(), kind, 1), kind, 4, options_for(mlp(), 2));
                }),
      Each(AllOf(HasSubstr("schedule"), HasSubstr("GPipe on rank 0"), HasSubstr("1F1B on rank 1"))));
  // Rank 1 has another value of one option.
  struct Difference {
    const char* field;
    void (*change)(PipelineOptions&);
  };
  for (const Difference& difference :
       {Difference{"scaling of gradients", [](PipelineOptions& options) { options.scale_grads = false; }},
        Difference{"loss on all ranks", [](PipelineOptions& options) { options.loss_on_all_ranks = true; }},
        Difference{"shared parameters",
                   [](PipelineOptions& options) {
                     options.shared = {{{StageId(0), "linear.weight"}, {StageId(1), "linear.weight"}}};
                   }},
        Difference{"seed", [](PipelineOptions& options) { options.seed = 3; }}}) {
    EXPECT_THAT(errors_of(2,
                          [&](World& world) {
                            PipelineOptions options = options_for(mlp(), 2);
                            if (world.rank().value == 1) difference.change(options);
                            make_mlp(world, 4, options);
                          }),
                Each(AllOf(HasSubstr(difference.field), HasSubstr("on rank 1"))));
  }
}

TEST(SetUp, ADifferenceInTheTableOfOneRankIsFound) {
  EXPECT_THAT(errors_of(2,
                        [](World& world) {
                          Schedule schedule = make_schedule(ScheduleKind::GPipe, {2, 1, 4});
                          if (world.rank().value == 1) std::swap(schedule.ranks[0][0], schedule.ranks[0][1]);
                          PipelineSchedule(stages_for(mlp(), world.group(), ScheduleKind::GPipe, 1), schedule,
                                           options_for(mlp(), 2));
                        }),
              Each(AllOf(HasSubstr("program"), HasSubstr("on rank 1"))));
}

TEST(SetUp, RefusesWhatCannotBe) {
  EXPECT_THAT(errors_of(2, [](World& world) { make_mlp(world, 0); }), Each(HasSubstr("0 microbatches")));
  EXPECT_THAT(errors_of(3,
                        [](World& world) {
                          const auto modules = mlp().make(2);
                          const PipelineStage stage(modules[0], 0, 2, at::kCPU, world.group());
                          PipelineSchedule({stage}, "1F1B", 4, options_for(mlp(), 2));
                        }),
              Each(HasSubstr("more ranks than stages")));
  EXPECT_THAT(errors_of(1,
                        [](World& world) {
                          const auto modules = mlp().make(2);
                          const PipelineStage stage(modules[0], 0, 2, at::kCPU, world.group());
                          PipelineSchedule({stage, stage}, "Interleaved1F1B", 4, options_for(mlp(), 2));
                        }),
              Each(HasSubstr("given twice")));
  EXPECT_THAT(errors_of(1,
                        [](World& world) {
                          const auto modules = mlp().make(2);
                          const PipelineStage stage(modules[0], 0, 2, at::kCPU, world.group());
                          PipelineSchedule({stage}, "Interleaved1F1B", 4, options_for(mlp(), 2));
                        }),
              Each(HasSubstr("missing")));
  EXPECT_THAT(errors_of(2,
                        [](World& world) {
                          const auto modules = mlp().make(2);
                          const int wrong = 1 - world.rank().value;
                          const PipelineStage stage(modules[0], wrong, 2, at::kCPU, world.group());
                          PipelineSchedule({stage}, "1F1B", 4, options_for(mlp(), 2));
                        }),
              Each(HasSubstr("places the stage on rank")));
  // One stage on two ranks, another on none.
  EXPECT_THAT(errors_of(2,
                        [](World& world) {
                          const PipelineStage stage(mlp().make(2)[0], 0, 2, at::kCPU, world.group());
                          PipelineSchedule({stage}, "1F1B", 4, options_for(mlp(), 2));
                        }),
              Each(AllOf(HasSubstr("places the stage on rank 0"), HasSubstr("rank 1, stage 0"))));
  EXPECT_THAT(
      errors_of(1, [](World& world) { PipelineStage(mlp().make(2)[0], 2, 2, at::kCPU, world.group()); }),
      Each(HasSubstr("no stage 2")));
}

// Tables of a user's own: what a stage may not be asked for is found before anything runs.
TEST(SetUp, RefusesTablesThatAskForWhatCannotBe) {
  struct Wrong {
    const char* rows;  // of rank 0; rank 1's are in order
    const char* text;
  };
  for (const Wrong& wrong :
       {Wrong{"0F0,0F1,0B0,0B7", "0B7 names microbatch 7, but there are only 2"},
        Wrong{"0B0,0F0,0F1,0B1", "0B0 needs the output of stage 0 of microbatch 0"},
        Wrong{"0F0,0F1,0B0,0B1,0B1", "0B1 repeats a backward that an earlier B, I or W has done"},
        Wrong{"0F0,0F1,0F1,0B0,0B1", "0F1 stands there twice"},
        Wrong{"0F0,0F1,0W0,0I0,0B1", "0W0 needs the input gradient of stage 0 of microbatch 0"},
        Wrong{"0F0,0F1,0B0", "stage 0 has no B or I of microbatch 1"}}) {
    EXPECT_THAT(errors_of(2,
                          [&](World& world) {
                            std::istringstream text(std::string(wrong.rows) + "\n1F0,1F1,1B0,1B1\n");
                            const Schedule schedule = read_csv(text, {.microbatches = 2}).schedule();
                            PipelineSchedule(stages_for(mlp(), world.group(), ScheduleKind::OneFOneB, 1),
                                             schedule, options_for(mlp(), 2));
                          }),
                Each(HasSubstr(wrong.text)));
  }
}

TEST(AStep, RefusesWhatIsMissing) {
  EXPECT_THAT(errors_of(2,
                        [](World& world) {
                          PipelineSchedule pipeline = make_mlp(world);
                          const at::NoGradGuard no_grad;
                          pipeline.step(mlp().batch(8));
                        }),
              Each(HasSubstr("switched off")));
  EXPECT_THAT(errors_of(2,
                        [](World& world) {
                          StepInput batch = mlp().batch(8);
                          batch.target = {};
                          make_mlp(world).step(batch);
                        }),
              Each(HasSubstr("target")));
  EXPECT_THAT(errors_of(2, [](World& world) { make_mlp(world).step({}, mlp().batch(8).target); }),
              Each(HasSubstr("no arguments")));
  EXPECT_THAT(errors_of(2,
                        [](World& world) {
                          StepInput batch = mlp().batch(8);
                          batch.kwargs["msk"] = at::ones({8});
                          make_mlp(world).step(batch);
                        }),
              Each(HasSubstr("'msk'")));
}

TEST(AStep, IsTheSameOnEveryRank) {
  EXPECT_THAT(errors_of(2,
                        [](World& world) {
                          PipelineSchedule pipeline = make_mlp(world);
                          world.rank().value == 0 ? pipeline.step(mlp().batch(8))
                                                  : pipeline.eval(mlp().batch(8));
                        }),
              Each(AllOf(HasSubstr("rank 0 runs step 0"), HasSubstr("rank 1 runs evaluation 0"))));
}

TEST(Shapes, MayChangeBetweenSteps) {
  at::set_num_threads(1);
  run_thread_ranks(2, [](World& world) {
    PipelineSchedule pipeline = make_mlp(world);
    for (const int rows : {8, 12, 7, 8}) {
      const StepResult result = pipeline.step(mlp().batch(rows));
      if (world.rank().value == 1) CHECK_SAME(result.outputs.toTensor().size(0), rows);
    }
  });
}

// What every rank says when the inputs of a static pipeline change after the first step.
std::vector<std::string> static_errors(const StepInput& first, const StepInput& second) {
  return errors_of(2, [&](World& world) {
    const StageFunction add = [](const Args& args, const Kwargs&) -> StageResult {
      at::Tensor sum = args[0].toTensor();
      for (std::size_t i = 1; i < args.size(); ++i)
        if (args[i].isTensor()) sum = sum + args[i].toTensor().sum();
      return sum.to(at::kFloat);
    };
    const PipelineStage stage(make_stage_module(nullptr, add), world.rank().value, 2, at::kCPU,
                              world.group());
    PipelineOptions options;
    options.shapes = ShapeMode::Static;
    PipelineSchedule pipeline(stage, "ForwardOnly", 4, options);
    pipeline.step(first);
    pipeline.step(first);
    pipeline.eval(first);  // the same shapes without gradients
    pipeline.step(second);
  });
}

TEST(Shapes, ThatAreStaticMayNotChangeAndEveryRankNamesEveryDifference) {
  const StepInput first{{at::ones({8, 6}), at::ones({8, 2}), 3}, {}, {}};
  StepInput second{{at::ones({10, 6}), at::ones({10, 2}), 3}, {}, {}};
  EXPECT_THAT(static_errors(first, second),
              Each(AllOf(HasSubstr("static"), HasSubstr("rank 0"),
                         HasSubstr("args[0] has shape [3, 6], expected [2, 6] (microbatches 0, 1)"),
                         HasSubstr("args[1] has shape [3, 2], expected [2, 2] (microbatches 0, 1)"),
                         HasSubstr("ShapeMode::Inferred"), Not(HasSubstr("cast")))));
  second = {{at::ones({8, 6}, at::kDouble), at::ones({8, 3}, at::kLong), 4}, {}, {}};
  EXPECT_THAT(
      static_errors(first, second),
      Each(AllOf(HasSubstr("args[0] has dtype float64, expected float32 (microbatches 0, 1, 2, 3)"),
                 HasSubstr("args[1] has shape [2, 3], expected [2, 2] and has dtype int64, expected float32"),
                 HasSubstr("args[2] is 4, expected 3"), HasSubstr("cast the inputs"))));
  second = {{at::ones({8, 6}).requires_grad_(true), at::ones({8, 2})}, {}, {}};
  EXPECT_THAT(static_errors(first, second),
              Each(AllOf(HasSubstr("args[0] requires a gradient, expected none"),
                         HasSubstr("args[2] is missing"), HasSubstr("detach"))));
}

// Rank 1 promises what does not come, of its input or its output.
TEST(Shapes, GivenByTheUserAreChecked) {
  const auto promised = TreeMeta::of(at::ones({2, 7}));
  for (const bool input : {true, false}) {
    EXPECT_THAT(errors_of(2,
                          [&](World& world) {
                            const int rank = world.rank().value;
                            StageOptions stage_options;
                            if (rank == 1 && input)
                              stage_options.input = TreeMeta::of(Args{at::ones({2, 7})});
                            if (rank == 1 && !input) stage_options.output = promised;
                            const PipelineStage stage(mlp().make(2)[static_cast<std::size_t>(rank)], rank, 2,
                                                      at::kCPU, world.group(), stage_options);
                            try {
                              Schedule1F1B(stage, 4, options_for(mlp(), 2)).step(mlp().batch(8));
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

// Stage 0 gives as many columns as its input's first number says: what the next receives depends on values.
std::vector<PipelineStage> varying_stages(World& world) {
  const StageFunction first = [](const Args& args, const Kwargs&) -> StageResult {
    const at::Tensor x = args[0].toTensor();
    return x.narrow(1, 0, x.select(1, 0)[0].item<std::int64_t>()) * 2;
  };
  const StageFunction second = [](const Args& args, const Kwargs&) -> StageResult {
    return args[0].toTensor().sum(1, true);
  };
  const int rank = world.rank().value;
  return {PipelineStage(make_stage_module(nullptr, rank == 0 ? first : second), rank, 2, at::kCPU,
                        world.group())};
}

TEST(Shapes, MayDependOnValuesWhereTheyAreDynamic) {
  const at::Tensor x = at::ones({3, 4}) * at::arange(1, 4).unsqueeze(1);
  const auto run = [&](World& world, ShapeMode mode) {
    PipelineOptions options;
    options.shapes = mode;
    PipelineSchedule pipeline(varying_stages(world), "ForwardOnly", 3, options);
    for (int step = 0; step < 2; ++step) {
      const c10::IValue outputs = pipeline.step({x}).outputs;
      if (world.rank().value == 1)
        CHECK_TENSORS(outputs.toTensor(), (2 * x.select(1, 0).square()).unsqueeze(1));
    }
  };
  run_thread_ranks(2, [&](World& world) { run(world, ShapeMode::Dynamic); });
  EXPECT_THAT(errors_of(2, [&](World& world) { run(world, ShapeMode::Inferred); }),
              Each(HasSubstr("Dynamic")));
}

}  // namespace
}  // namespace penstock::test
