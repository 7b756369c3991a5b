// Inputs of a step: batches that are split or still to be split, keyword arguments by name, tensors whose
// gradients the caller wants, and all kinds of losses.
#include "runtime/support/rank_errors.h"
#include "support/batch.h"
#include "support/check.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/schedules.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace penstock::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kInputMicrobatches = 4;

at::Tensor numbers(std::int64_t rows, double scale = 1, std::int64_t columns = 3) {
  return torch::arange(rows * columns, torch::kFloat).reshape({rows, columns}).mul(scale).sin();
}

// A plain module forward: const, positional parameters, one of them optional.
struct ScaledImpl : torch::nn::Module {
  explicit ScaledImpl(int stage) { weight = register_parameter("weight", numbers(3, 0.3 + stage).add(0.2)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& scale,
                     const std::optional<at::Tensor>& shift) const {
    const at::Tensor y = (x.matmul(weight) * scale).tanh();
    return shift ? y + *shift : y;
  }
  at::Tensor weight;
};
TORCH_MODULE(Scaled);

runtime::PipelineStage scaled_stage(comm::World& world, const Scaled& module) {
  return {runtime::make_stage_module(module, {"x", "scale", "shift"}), StageId(world.rank().value),
          world.size(), at::kCPU, world.group()};
}

runtime::PipelineOptions mse_options() {
  runtime::PipelineOptions options;
  options.loss = [](const at::Tensor& y, const at::Tensor& t) { return (y - t).square().mean(); };
  return options;
}

// The dense run of both stages over the full batch, with all gradients.
struct Dense {
  Scaled first{0}, second{1};
  at::Tensor base = numbers(10, 0.7).requires_grad_(true);
  at::Tensor x = numbers(10).requires_grad_(true), scale0 = numbers(10, 2).requires_grad_(true),
             scale1 = numbers(10, 3, 1).requires_grad_(true), shift = numbers(10, 4).requires_grad_(true);
  at::Tensor target = numbers(10, 5), loss;

  explicit Dense(bool from_base = false) {
    const at::Tensor input = from_base ? base.exp() : x;
    const at::Tensor y = second->forward(first->forward(input, scale0, {}), scale1, shift);
    loss = (y - target).square().mean();
    loss.backward();
  }
};

// The arguments of this rank, as separate tensors.
struct Given {
  at::Tensor base = numbers(10, 0.7).requires_grad_(true);
  at::Tensor x = numbers(10).requires_grad_(true), scale0 = numbers(10, 2).requires_grad_(true),
             scale1 = numbers(10, 3, 1).requires_grad_(true), shift = numbers(10, 4).requires_grad_(true);

  TestBatch input(int rank) const {
    TestBatch batch{{x}, numbers(10, 5)};
    if (rank == 0) batch.options.kwargs["scale"] = scale0;
    if (rank == 1) batch.options.stage_kwargs[StageId(1)] = {{"scale", scale1}, {"shift", shift}};
    return batch;
  }
};

TEST(RuntimeInputGradients, AreSetForPositionalAndKeywordArguments) {
  const Dense dense;
  for (const char* const name : {"GPipe", "1F1B", "ZB1P"}) {
    for (const bool returned : {false, true}) {
      comm::run_thread_ranks(2, [&](comm::World& world) {
        const int rank = world.rank().value;
        const Scaled module(rank);
        runtime::PipelineOptions options = mse_options();
        options.input_grads = returned;
        runtime::PipelineSchedule pipeline(scaled_stage(world, module), name, kInputMicrobatches, options);
        const Given given;
        const runtime::StepResult result = step_on(pipeline, given.input(rank));
        step_on(pipeline, given.input(rank));  // accumulates
        CHECK_CLOSE(module->weight.grad(), 2 * (rank == 0 ? dense.first : dense.second)->weight.grad(), 1e-5,
                    1e-6);
        if (rank == 0) {
          CHECK_CLOSE(given.x.grad(), 2 * dense.x.grad(), 1e-5, 1e-6);
          CHECK_CLOSE(given.scale0.grad(), 2 * dense.scale0.grad(), 1e-5, 1e-6);
        } else {
          CHECK_THAT(!given.x.grad().defined());  // belongs to the stage of another rank
          CHECK_CLOSE(given.scale1.grad(), 2 * dense.scale1.grad(), 1e-5, 1e-6);
          CHECK_CLOSE(given.shift.grad(), 2 * dense.shift.grad(), 1e-5, 1e-6);
        }
        CHECK_SAME(result.input_grads.size(), std::size_t(returned && rank == 0 ? 1 : 0));
        CHECK_SAME(result.kwarg_grads.size(), std::size_t(returned && rank == 0 ? 1 : 0));
        if (!returned) return;
        if (rank == 0) {  // of one step only
          CHECK_CLOSE(result.input_grads[0].toTensor(), dense.x.grad(), 1e-5, 1e-6);
          CHECK_CLOSE(result.kwarg_grads.at("scale").toTensor(), dense.scale0.grad(), 1e-5, 1e-6);
        } else {
          CHECK_CLOSE(result.stage_kwarg_grads.at(StageId(1)).at("scale").toTensor(), dense.scale1.grad(),
                      1e-5, 1e-6);
          CHECK_CLOSE(result.stage_kwarg_grads.at(StageId(1)).at("shift").toTensor(), dense.shift.grad(),
                      1e-5, 1e-6);
        }
      });
    }
  }
}

TEST(RuntimeInputGradients, PropagateIntoCallersGraph) {
  const Dense dense(true);
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const int rank = world.rank().value;
    runtime::PipelineSchedule pipeline(scaled_stage(world, Scaled(rank)), "1F1B", kInputMicrobatches,
                                       mse_options());
    Given given;
    given.x = given.base.exp();  // its backward can run only once, because it saves its result
    step_on(pipeline, given.input(rank));
    if (rank == 0) CHECK_CLOSE(given.base.grad(), dense.base.grad(), 1e-5, 1e-6);
  });
}

TEST(RuntimeInputGradients, AreAbsentInEval) {
  comm::run_thread_ranks(2, [](comm::World& world) {
    const int rank = world.rank().value;
    runtime::PipelineOptions options = mse_options();
    options.input_grads = true;
    runtime::PipelineSchedule pipeline(scaled_stage(world, Scaled(rank)), "1F1B", kInputMicrobatches,
                                       options);
    const Given given;
    const runtime::StepResult result = eval_on(pipeline, given.input(rank));
    CHECK_THAT(result.input_grads.empty() && result.kwarg_grads.empty());
    CHECK_THAT(!given.x.grad().defined() && !given.scale0.grad().defined());
  });
}

// Microbatches of 4, 1, 3 and 2 rows, as split by the caller.
runtime::Microbatches microbatches_of(const TestBatch& unsplit) {
  const std::vector<std::int64_t> rows{4, 1, 3, 2};
  const auto parts = [&](const c10::IValue& value) { return value.toTensor().split_with_sizes(rows); };
  runtime::Microbatches split;
  for (const at::Tensor& part : parts(unsplit.args[0])) split.args.push_back({part});
  for (const at::Tensor& part : parts(unsplit.target)) split.targets.emplace_back(part);
  for (const auto& [name, value] : unsplit.options.kwargs) {
    split.kwargs.resize(rows.size());
    for (std::size_t m = 0; m < rows.size(); ++m) split.kwargs[m][name] = parts(value)[m];
  }
  for (const auto& [stage, kwargs] : unsplit.options.stage_kwargs) {
    split.stage_kwargs[stage].resize(rows.size());
    for (const auto& [name, value] : kwargs)
      for (std::size_t m = 0; m < rows.size(); ++m) split.stage_kwargs[stage][m][name] = parts(value)[m];
  }
  return split;
}

TEST(RuntimePreSplitMicrobatches, MatchGradientsOfFullBatch) {
  const Dense dense;
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const int rank = world.rank().value;
    const Scaled module(rank);
    runtime::PipelineOptions options = mse_options();
    options.input_grads = true;
    runtime::PipelineSchedule pipeline(scaled_stage(world, module), "1F1B", kInputMicrobatches, options);
    const Given given;
    const runtime::Microbatches split = microbatches_of(given.input(rank));
    const runtime::StepResult result = pipeline.step_microbatches(split);
    CHECK_CLOSE(module->weight.grad(), (rank == 0 ? dense.first : dense.second)->weight.grad(), 1e-5, 1e-6);
    if (rank == 1) {
      CHECK_CLOSE(result.loss, dense.loss.detach(), 1e-5, 1e-6);
      CHECK_SAME(result.losses.size(), std::size_t{kInputMicrobatches});
      CHECK_SAME(result.outputs.toTensor().size(0), 10);
      return;
    }
    CHECK_CLOSE(given.x.grad(), dense.x.grad(), 1e-5, 1e-6);  // through the split of the caller
    std::vector<at::Tensor> grads;
    for (const c10::IValue& grad : result.input_grads.at(0).toTupleRef().elements())
      grads.push_back(grad.toTensor());
    CHECK_CLOSE(at::cat(grads), dense.x.grad(), 1e-5, 1e-6);
  });
}

TEST(RuntimePreSplitMicrobatches, AreBitwiseEqualToLibrarySplit) {
  comm::run_thread_ranks(2, [](comm::World& world) {
    const int rank = world.rank().value;
    const Scaled unsplit(rank), parts(rank);
    runtime::PipelineSchedule one(scaled_stage(world, unsplit), "GPipe", kInputMicrobatches, mse_options());
    runtime::PipelineSchedule other(scaled_stage(world, parts), "GPipe", kInputMicrobatches, mse_options());
    const TestBatch input{{numbers(10)}, numbers(10, 5), {.kwargs = {{"scale", numbers(10, 2)}}}};
    const value::Chunks chunks =
        value::split_args_kwargs_into_chunks(input.args, input.options.kwargs, kInputMicrobatches);
    runtime::Microbatches split{.args = chunks.args,
                                .kwargs = chunks.kwargs,
                                .targets = value::split_tree(input.target, kInputMicrobatches, "target")};
    const runtime::StepResult expected = step_on(one, input), result = other.step_microbatches(split);
    CHECK_TENSORS(parts->weight.grad(), unsplit->weight.grad());
    if (rank == 1) CHECK_TENSORS(result.outputs.toTensor(), expected.outputs.toTensor());
    if (rank == 1) CHECK_TENSORS(result.loss, expected.loss);
    const runtime::StepResult evaluated = other.eval_microbatches(split);
    if (rank == 1) CHECK_TENSORS(evaluated.outputs.toTensor(), eval_on(one, input).outputs.toTensor());
    if (rank == 0) eval_on(one, input);
  });
}

// A microbatch without rows has weight 0. Its loss, a mean over nothing, is NaN and must not reach the
// result.
TEST(RuntimePreSplitMicrobatches, WithoutRowsHaveNoWeight) {
  const at::Tensor x = numbers(10), target = numbers(10, 5);
  const value::Kwargs scale{{"scale", at::ones({1, 1})}};
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const int rank = world.rank().value;
    const Scaled module(rank), dense(rank);
    const std::vector<std::int64_t> sizes{4, 0, 6, 0};
    runtime::Microbatches split, full;
    for (const at::Tensor& rows : x.split_with_sizes(sizes)) split.args.push_back({rows});
    for (const at::Tensor& rows : target.split_with_sizes(sizes)) split.targets.emplace_back(rows);
    split.kwargs.assign(kInputMicrobatches, scale);
    full = {.args = {{x}}, .kwargs = {scale}, .targets = {target}};
    runtime::PipelineSchedule pipeline(scaled_stage(world, module), "1F1B", kInputMicrobatches,
                                       mse_options());
    runtime::PipelineSchedule one(scaled_stage(world, dense), "1F1B", 1, mse_options());
    const runtime::StepResult result = pipeline.step_microbatches(split),
                              expected = one.step_microbatches(full);
    CHECK_CLOSE(module->weight.grad(), dense->weight.grad(), 1e-5, 1e-6);
    if (rank == 0) return;
    CHECK_CLOSE(result.loss, expected.loss, 1e-5, 1e-6);
    CHECK_TENSORS(result.outputs.toTensor(), expected.outputs.toTensor());
  });
}

TEST(RuntimePreSplitMicrobatches, MustMatchScheduleMicrobatchCount) {
  EXPECT_THAT(errors_of(2,
                        [](comm::World& world) {
                          runtime::PipelineSchedule pipeline(scaled_stage(world, Scaled(0)), "1F1B",
                                                             kInputMicrobatches, mse_options());
                          runtime::Microbatches split = microbatches_of(Given().input(world.rank().value));
                          if (world.rank().value == 0) split.args.pop_back();
                          pipeline.step_microbatches(split);
                        }),
              Each(AllOf(HasSubstr("arguments of 3 microbatches"), HasSubstr("schedule of 4"))));
}

// 128 and 256 rows in 2 chunks: with a chunk spec, each tensor is split separately.
TEST(RuntimeRowCounts, MayDifferWithChunkSpec) {
  const at::Tensor x = numbers(128), y = numbers(256, 0.5);
  const runtime::StageFunction forward = [](const value::Args& args,
                                            const value::Kwargs&) -> runtime::StageResult {
    CHECK_SAME(args[0].toTensor().size(0), 64);
    CHECK_SAME(args[1].toTensor().size(0), 128);
    return args[0].toTensor() + args[1].toTensor().view({64, 2, 3}).sum(1);
  };
  comm::run_thread_ranks(1, [&](comm::World& world) {
    const runtime::PipelineStage stage(runtime::make_stage_module(nullptr, forward), StageId(0), 1, at::kCPU,
                                       world.group());
    runtime::PipelineOptions options;
    options.args_spec = value::ChunkSpec::dims({0, 0});
    const at::Tensor result = runtime::ScheduleForwardOnly(stage, 2, options).step({x, y}).outputs.toTensor();
    CHECK_TENSORS(result, x + y.view({128, 2, 3}).sum(1));
  });
  EXPECT_THAT(errors_of(1,
                        [&](comm::World& world) {
                          const runtime::PipelineStage stage(runtime::make_stage_module(nullptr, forward),
                                                             StageId(0), 1, at::kCPU, world.group());
                          runtime::ScheduleForwardOnly(stage, 2).step({x, y});
                        }),
              Each(AllOf(HasSubstr("args[1] has 256 rows"), HasSubstr("chunk spec"))));
}

TEST(RuntimeLosses, LossIsRequiredOnlyWithBackward) {
  std::vector<std::string> texts(2);
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const int rank = world.rank().value;
    const Scaled module(rank);
    runtime::PipelineSchedule pipeline(scaled_stage(world, module), "1F1B", kInputMicrobatches);
    const Given given;
    try {
      step_on(pipeline, given.input(rank));
    } catch (const UsageError& e) {
      texts[static_cast<std::size_t>(rank)] = e.what();
    }
    // The error was raised before anything ran: the pipeline still works.
    const runtime::StepResult evaluated = eval_on(pipeline, given.input(rank));
    const runtime::StepResult forward = step_on(
        runtime::ScheduleForwardOnly(scaled_stage(world, module), kInputMicrobatches), given.input(rank));
    if (rank == 1) CHECK_TENSORS(evaluated.outputs.toTensor(), forward.outputs.toTensor());
    CHECK_THAT(evaluated.losses.empty() && !forward.loss.defined());
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("PipelineOptions::loss"), HasSubstr("ForwardOnly"))));
}

TEST(RuntimeLosses, AcceptAnyFunctionOfOutputAndTarget) {
  const at::Tensor x = numbers(8), target = numbers(8, 2);
  const auto loss_with = [&](runtime::LossFunction loss) {
    double value = 0;
    comm::run_thread_ranks(1, [&](comm::World& world) {
      runtime::PipelineOptions options;
      options.loss = std::move(loss);
      runtime::PipelineSchedule pipeline(
          runtime::PipelineStage(torch::nn::Identity(), StageId(0), 1, at::kCPU, world.group()),
          schedule::ScheduleKind::GPipe, 2, options);
      value = pipeline.eval({x}, target).loss.item<double>();
    });
    return value;
  };
  const double mse = torch::mse_loss(x, target).item<double>();
  EXPECT_NEAR(loss_with(torch::mse_loss), mse, 1e-6);
  EXPECT_NEAR(loss_with(torch::nn::MSELoss()), mse, 1e-6);
  EXPECT_NEAR(loss_with([](const at::Tensor& y, const at::Tensor& t) { return torch::mse_loss(y, t); }), mse,
              1e-6);
  EXPECT_NEAR(loss_with([](at::Tensor y, at::Tensor t) { return torch::mse_loss(y, t); }), mse, 1e-6);
  EXPECT_NEAR(
      loss_with(runtime::tensor_loss([](const auto& y, const auto& t) { return (y - t).square().mean(); })),
      mse, 1e-6);
  EXPECT_NEAR(loss_with([](const c10::IValue& y, const c10::IValue& t) {
                return torch::mse_loss(y.toTensor(), t.toTensor());
              }),
              mse, 1e-6);
  EXPECT_NEAR(loss_with([](const c10::IValue& y, const c10::IValue& t, const value::Kwargs&) {
                return torch::mse_loss(y.toTensor(), t.toTensor());
              }),
              mse, 1e-6);
  EXPECT_NEAR(loss_with([](const auto& y, const auto& t) -> at::Tensor {
                return torch::mse_loss(y.toTensor(), t.toTensor());
              }),
              mse, 1e-6);
  EXPECT_FALSE(static_cast<bool>(runtime::LossFunction(nullptr)));
  EXPECT_FALSE(
      static_cast<bool>(runtime::LossFunction(static_cast<at::Tensor (*)(at::Tensor, at::Tensor)>(nullptr))));
  const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> none;
  EXPECT_FALSE(static_cast<bool>(runtime::LossFunction(none)));
  EXPECT_TRUE(static_cast<bool>(runtime::LossFunction(torch::l1_loss)));
}

TEST(RuntimeLosses, RejectOtherFunctions) {
  using runtime::detail::AnyLoss;
  static_assert(AnyLoss<decltype(&torch::mse_loss)> && AnyLoss<torch::nn::MSELoss>);
  static_assert(!AnyLoss<at::Tensor (*)(const at::Tensor&)>);
  static_assert(!AnyLoss<int (*)(const at::Tensor&, const at::Tensor&)>);
}

TEST(RuntimeStepArguments, AcceptEmptyBracesOnRanksWithoutInputs) {
  comm::run_thread_ranks(3, [](comm::World& world) {
    const int rank = world.rank().value;
    runtime::PipelineSchedule pipeline(
        runtime::PipelineStage(torch::nn::Linear(3, 3), StageId(rank), 3, at::kCPU, world.group()), "1F1B", 2,
        mse_options());
    if (rank == 0) pipeline.step({numbers(4)});
    if (rank == 1) pipeline.step({});
    if (rank == 2) pipeline.step({}, numbers(4));
    // Braces without names are empty options, too.
    rank == 0 ? pipeline.step({numbers(4)}, {}, {}) : pipeline.step({}, numbers(4), {});
    rank == 0 ? pipeline.eval({numbers(4)}) : pipeline.eval({});
    rank == 0 ? pipeline.eval({numbers(4)}) : pipeline.eval({});
  });
}

TEST(RuntimeOutputs, AreReturnedAsConfigured) {
  comm::run_thread_ranks(1, [](comm::World& world) {
    const runtime::PipelineStage stage(torch::nn::Linear(3, 3), StageId(0), 1, at::kCPU, world.group());
    for (const bool by_default : {false, true}) {
      runtime::PipelineOptions options = mse_options();
      options.return_outputs = by_default;
      runtime::PipelineSchedule pipeline(stage, "1F1B", 2, options);
      TestBatch input{{numbers(4)}, numbers(4)};
      CHECK_SAME(step_on(pipeline, input).outputs.isTensor(), by_default);
      for (const bool wanted : {true, false}) {
        input.options.return_outputs = wanted;
        CHECK_SAME(step_on(pipeline, input).outputs.isTensor(), wanted);
        CHECK_SAME(eval_on(pipeline, input).outputs.isTensor(), wanted);
      }
    }
  });
}

TEST(RuntimeNamedParameters, AcceptKeywordArgumentsForPlainForward) {
  const Scaled module(0);
  const auto stage = runtime::make_stage_module(module, {"x", "scale", "shift"});
  const at::Tensor x = numbers(4), scale = numbers(4, 2), shift = numbers(4, 3);
  const auto run = [&](const value::Args& args, const value::Kwargs& kwargs) {
    return stage->forward(args, kwargs).output.toTensor();
  };
  EXPECT_TRUE(run({x}, {{"scale", scale}}).equal(module->forward(x, scale, {})));
  EXPECT_TRUE(run({x}, {{"shift", shift}, {"scale", scale}}).equal(module->forward(x, scale, shift)));
  EXPECT_TRUE(run({}, {{"x", x}, {"scale", scale}}).equal(module->forward(x, scale, {})));
  EXPECT_TRUE(run({x, scale, shift}, {}).equal(module->forward(x, scale, shift)));
  EXPECT_EQ(*stage->keywords(), (std::set<std::string>{"scale", "shift", "x"}));
  EXPECT_TRUE(runtime::make_stage_module(module)
                  ->forward({x, scale, shift}, {})
                  .output.toTensor()
                  .equal(module->forward(x, scale, shift)));  // a forward that is const
  EXPECT_THAT(error_message<UsageError>([&] {
                run({x}, {{"shift", shift}});
              }),
              HasSubstr("needs the argument 'scale'"));
  EXPECT_THAT(error_message<UsageError>([&] {
                run({x}, {{"x", x}, {"scale", scale}});
              }),
              HasSubstr("both positionally and by keyword"));
  EXPECT_THAT(error_message<UsageError>([&] {
                run({x}, {{"scale", scale}, {"mask", x}});
              }),
              HasSubstr("'mask'"));
  EXPECT_THAT(error_message<UsageError>([&] { run({x, x, x, x}, {}); }), HasSubstr("takes 3 arguments"));
  EXPECT_THAT(error_message<UsageError>([&] { runtime::make_stage_module(module, {"x"}); }),
              HasSubstr("3 parameters"));
  EXPECT_THAT(error_message<UsageError>([&] {
                runtime::make_stage_module(module, {"x", "y", "y"});
              }),
              HasSubstr("same name"));
  EXPECT_THAT(error_message<UsageError>([&] {
                runtime::make_stage_module(module)->forward({x, scale, shift}, {{"a", x}});
              }),
              HasSubstr("make_stage_module(module, {"));
}

}  // namespace
}  // namespace penstock::test
