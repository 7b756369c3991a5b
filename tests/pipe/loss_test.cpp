// Models that compute their own loss, tied weights that are transmitted, Sequentials in stages, and `forward`
// functions with several arguments.
#include "executor_comparison.h"
#include "support/error_message.h"
#include "support/models/capture_models.h"
#include "support/same_bits.h"
#include "support/stage_runner.h"
#include "support/tensor_file.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/pipe/wrappers.h>

#include <gmock/gmock.h>

namespace penstock::pipe {
namespace {

using c10::IValue;
using test::archive;
using test::same_bits;
using ::testing::HasSubstr;

const SplitSpec kNoSplit = SplitPolicy([](const graph::Graph&) { return graph::SplitPositions{}; });

using Mse = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
using Wrapped = TrivialLossWrapper<test::Mlp, Mse>;

at::Tensor mse(const at::Tensor& y, const at::Tensor& target) {
  return torch::mse_loss(y, target);
}

//! Returns the loss among other outputs and takes labels as the second argument.
struct WithLossImpl : torch::nn::Module {
  WithLossImpl() : mlp(register_module("mlp", test::Mlp())) {}
  IValue forward(at::Tensor x, at::Tensor labels) {
    const auto logits = mlp(x);
    c10::Dict<std::string, at::Tensor> out;
    out.insert("logits", logits);
    out.insert("loss", torch::cross_entropy_loss(logits, labels));
    return out;
  }
  test::Mlp mlp;
};
TORCH_MODULE(WithLoss);

runtime::LossFunction leaf(std::size_t index) {
  return [index](const IValue& output, const IValue&, const value::Kwargs&) {
    return value::flatten(output).leaves[index].toTensor();
  };
}

TEST(PipeWithLoss, TrainsWithoutLossFunctionOrTarget) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  const auto model = std::make_shared<Wrapped>(test::Mlp(), mse);
  const test::Batch batch{{torch::randn({8, 6}), torch::randn({8, 6})}};
  const value::Args example{torch::randn({2, 6}), torch::randn({2, 6})};
  const auto expected =
      test::train_dense(test::unsplit_module(pipeline(model, example, {}, kNoSplit)), leaf(0), batch);
  EXPECT_TRUE(expected.gradients.contains("module.layers.0.weight"));
  for (const auto& [ranks, stages, schedule] :
       {std::tuple(2, 2, "1F1B"), std::tuple(2, 4, "ZBVZeroBubble"), std::tuple(4, 4, "GPipe")}) {
    SCOPED_TRACE(schedule);
    model->zero_grad();
    Pipe pipe = pipeline(model, example, {}, Balanced{stages});
    EXPECT_TRUE(pipe.info().has_loss_and_backward);
    comm::run_thread_ranks(ranks, [&, name = schedule](comm::World& world) {
      test::expect_step(pipe, name, {}, batch, expected, world.group());
    });
  }
}

TEST(PipeWithLoss, LossMayBeOneOfSeveralOutputs) {
  at::set_num_threads(1);
  torch::manual_seed(2);
  const WithLoss model;
  const value::Args example{torch::randn({2, 6}), torch::randint(0, 6, {2})};
  const test::Batch batch{{torch::randn({8, 6}), torch::randint(0, 6, {8})}};
  const PipeOptions options{.loss_output = "output.loss"};
  Pipe unsplit_pipe = pipeline(model, example, {}, kNoSplit);
  const auto paths = unsplit_pipe.graph().output_paths();
  const auto index = std::find(paths.begin(), paths.end(), "output.loss") - paths.begin();
  const auto expected =
      test::train_dense(test::unsplit_module(unsplit_pipe), leaf(static_cast<std::size_t>(index)), batch);
  Pipe pipe = pipeline(model, example, {}, Balanced{2}, options);
  comm::run_thread_ranks(2, [&](comm::World& world) {
    test::expect_step(pipe, "1F1B", {}, batch, expected, world.group());
    // Evaluation returns losses and outputs: rows are concatenated, with one loss per microbatch.
    std::vector<runtime::PipelineStage> stage{
        pipe.build_stage(StageId(world.rank().value), at::kCPU, world.group())};
    runtime::PipelineSchedule pipeline(stage, "1F1B", 4, pipe.pipeline_options());
    const runtime::StepResult result = pipeline.eval(world.rank().value == 0 ? batch.args : value::Args{});
    if (world.rank().value == 0) return;
    EXPECT_TRUE(at::allclose(result.loss, expected.loss));
    const auto outputs = result.outputs.toGenericDict();
    EXPECT_EQ(outputs.at("logits").toTensor().sizes(), (std::vector<std::int64_t>{8, 6}));
    EXPECT_EQ(outputs.at("loss").toTensor().sizes(), (std::vector<std::int64_t>{4}));
  });
  try {
    pipeline(model, example, {}, kNoSplit, {.loss_output = "output.los"});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("output.loss"));
  }
}

//! Defines how model and loss are connected, and adds a penalty.
struct Penalised : LossWrapper<test::Mlp, Mse> {
  using LossWrapper::LossWrapper;
  std::tuple<at::Tensor, at::Tensor> forward(at::Tensor x, at::Tensor target) {
    const auto y = module(x);
    return {y, loss_fn(y, target) + 0.01 * y.abs().mean()};
  }
};

TEST(PipeWithLoss, CustomWrapperConnectsModelAndLoss) {
  at::set_num_threads(1);
  torch::manual_seed(8);
  const auto model = std::make_shared<Penalised>(test::Mlp(), mse);
  const test::Batch batch{{torch::randn({8, 6}), torch::randn({8, 6})}};
  const value::Args example{torch::randn({2, 6}), torch::randn({2, 6})};
  const auto expected =
      test::train_dense(test::unsplit_module(pipeline(model, example, {}, kNoSplit)), leaf(1), batch);
  Pipe pipe = pipeline(model, example, {}, Balanced{3}, {.loss_output = "output.1"});
  EXPECT_TRUE(pipe.info().has_loss_and_backward);
  comm::run_thread_ranks(
      3, [&](comm::World& world) { test::expect_step(pipe, "1F1B", {}, batch, expected, world.group()); });
}

struct TurnedImpl : torch::nn::Module {
  TurnedImpl() : lin(register_module("lin", torch::nn::Linear(4, 5))) {}
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(at::Tensor x) {
    const auto y = lin(x.tanh());
    return {y, y.t(), lin->weight * 2};
  }
  torch::nn::Linear lin;
};
TORCH_MODULE(Turned);

TEST(PipeOutputs, AreConcatenatedAlongBatchDim) {
  at::set_num_threads(1);
  torch::manual_seed(7);
  Turned model;
  const auto x = torch::randn({7, 4});
  const std::tuple outputs_of_model = model->forward(x);
  Pipe pipe = pipeline(model, {torch::randn({3, 4})}, {}, Balanced{2}, {.dynamic_batch = true});
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const auto& [y, turned, weight] = outputs_of_model;
    std::vector<runtime::PipelineStage> stage{
        pipe.build_stage(StageId(world.rank().value), at::kCPU, world.group())};
    runtime::PipelineSchedule pipeline(stage, "ForwardOnly", 3, pipe.pipeline_options());
    const runtime::StepResult result =
        pipeline.eval(world.rank().value == 0 ? value::Args{x} : value::Args{});
    if (world.rank().value == 0) return;
    const auto outputs = value::tensors_of(result.outputs);
    EXPECT_TRUE(at::allclose(outputs.at(0), y));
    EXPECT_TRUE(at::allclose(outputs.at(1), turned));
    EXPECT_TRUE(at::equal(outputs.at(2), weight));
  });
}

TEST(PipeWithLoss, StagesRunDetachedFromEachOther) {
  torch::manual_seed(3);
  test::Mlp mlp;
  Pipe pipe = pipeline(mlp, {torch::randn({2, 6})}, {}, Balanced{2});
  pipe.forward({torch::randn({2, 6})}).toTensor().sum().backward();
  for (const auto& [name, tensor] : pipe.stage_module(StageId(0))->named_parameters())
    EXPECT_FALSE(tensor.grad().defined()) << name;
  for (const auto& [name, tensor] : pipe.stage_module(StageId(1))->named_parameters())
    EXPECT_TRUE(tensor.grad().defined()) << name;
}

TEST(PipeMultiUse, TransmittedWeightStaysInOneStageWithFullGradient) {
  at::set_num_threads(1);
  torch::manual_seed(4);
  const test::Batch batch{{torch::randint(0, 13, {8, 5})}};
  const auto expected =
      test::train_dense(test::unsplit_module(load_pt2(archive("gpt.pt2"), kNoSplit)), test::any_loss, batch);
  const PipeOptions transmit{.multi_use = {graph::MultiUseParameterConfig::Transmit}};
  const PipeOptions by_name{
      .multi_use = {.by_name = {{"head.weight", graph::MultiUseParameterConfig::Transmit}}}};
  runtime::PipelineOptions options;
  options.loss = test::any_loss;
  options.loss_needs_target = false;
  for (const auto& [how, stages, schedule] :
       {std::tuple(transmit, 2, "1F1B"), std::tuple(by_name, 4, "Interleaved1F1B"),
        std::tuple(transmit, 4, "ZBVZeroBubble")}) {
    SCOPED_TRACE(schedule);
    Pipe pipe = load_pt2(archive("gpt.pt2"), Balanced{stages}, how);
    EXPECT_TRUE(pipe.split().shared.empty());
    EXPECT_THAT(to_string(pipe.split()), HasSubstr("p_token_weight"));
    comm::run_thread_ranks(2, [&, name = schedule](comm::World& world) {
      test::expect_step(pipe, name, options, batch, expected, world.group());
    });
  }
  try {
    load_pt2(archive("gpt.pt2"), AtMarks{},
             {.multi_use = {.by_name = {{"heat.weight", graph::MultiUseParameterConfig::Transmit}}}});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean head.weight?"));
  }
}

TEST(PipeSequential, HasOneStagePerLayer) {
  torch::manual_seed(5);
  const torch::nn::Sequential layers(torch::nn::Linear(4, 5), torch::nn::ReLU(), test::Mlp(1, 5),
                                     torch::nn::Linear(5, 3));
  const auto x = torch::randn({2, 4});
  Pipe pipe = pipeline(PipeSequential::from_sequential(layers), {x});
  ASSERT_EQ(pipe.num_stages(), 4);
  EXPECT_TRUE(same_bits(pipe.forward({x}).toTensor(), layers.ptr()->forward(x)));
  EXPECT_EQ(pipe.stage_module(StageId(3))->named_parameters()[0].name, "3.weight");
  EXPECT_EQ(pipe.stage_module(StageId(2))->named_parameters()[0].name, "2.layers.0.weight");
  EXPECT_EQ(module_paths(pipe.stage_graph(StageId(1))), std::vector<std::string>{"1"});
}

TEST(PipeAnnotateSplitPoints, MarksOnceAndKeepsGraph) {
  test::Mlp mlp;
  Pipe unsplit_pipe = pipeline(mlp, {torch::randn({2, 6})}, {}, kNoSplit);
  const SplitPoints points{{"layers.1", graph::SplitPoint::Beginning}, {"layers.2", graph::SplitPoint::End}};
  const std::size_t nodes = unsplit_pipe.graph().nodes.size();
  const graph::Graph marked = annotate_split_points(unsplit_pipe.graph(), points);
  EXPECT_EQ(unsplit_pipe.graph().nodes.size(), nodes);
  EXPECT_EQ(marked.nodes.size(), nodes + 2);
  EXPECT_EQ(annotate_split_points(marked, points).nodes.size(), nodes + 2);
  const graph::Graph more = annotate_split_points(marked, {{"layers.3", graph::SplitPoint::Beginning}});
  EXPECT_EQ(split_at_marks(marked).size(), 2U);
  EXPECT_LE(split_at_marks(more).size(), 3U);
  const auto text = [](const graph::SplitGraph& split) { return to_string(split); };
  EXPECT_EQ(text(split_graph(marked, split_at_marks(marked))),
            text(split_graph(unsplit_pipe.graph(), split_at_modules(unsplit_pipe.graph(), points))));
}

struct SeveralImpl : torch::nn::Module {
  SeveralImpl() : lin(register_module("lin", torch::nn::Linear(3, 3))) {}
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& a, at::Tensor b, double scale, bool twice) {
    const auto y = lin(a) * scale + (twice ? b * 2 : b);
    return {y, y.sum(1)};
  }
  torch::nn::Linear lin;
};
TORCH_MODULE(Several);

TEST(PipePipeline, AcceptsForwardsWithSeveralArguments) {
  torch::manual_seed(6);
  Several model;
  const auto a = torch::randn({2, 3}), b = torch::randn({2, 3});
  Pipe pipe = pipeline(model, {a, b, 0.5, true}, {}, Balanced{2});
  const auto got = value::flatten(pipe.forward({a, b, 0.5, true})).leaves;
  const auto [y, sum] = model->forward(a, b, 0.5, true);
  EXPECT_TRUE(same_bits(got[0].toTensor(), y));
  EXPECT_TRUE(same_bits(got[1].toTensor(), sum));
  EXPECT_ERROR(pipe.forward({a, b, 0.25, true}), ShapeError,
               "differs from the constant in the graph");  // numbers become constants of the graph
  EXPECT_ERROR(pipeline(model, {a, b}), UsageError, "takes 4 arguments but was given 2");
}

}  // namespace
}  // namespace penstock::pipe
