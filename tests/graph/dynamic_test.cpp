// Captures with a dynamic batch size: one graph for any number of rows, bitwise equal to eager.
#include "support/error_message.h"
#include "support/models/capture_models.h"
#include "support/same_bits.h"
#include "support/stage_runner.h"
#include "support/tensor_file.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/split.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::graph {
namespace {

using c10::IValue;
using test::same_bits;
using testing::HasSubstr;

template <class Module>
void expect_any_batch(const std::string& name, Module& module, const ForwardFunction& forward,
                      const std::function<value::Args(std::int64_t)>& batch) {
  SCOPED_TRACE(name);
  at::set_num_threads(1);
  const ModelTensors model = test::tensors_of_module(module);
  const Captured captured = capture_dynamic(forward, model, batch(3));
  EXPECT_EQ(to_string(parse_graph(to_string(captured.graph))), to_string(captured.graph));
  std::map<std::string, at::Tensor> start;
  for (std::size_t i = 0; i < captured.tensors.size(); ++i)
    start[captured.graph.slots[i].names[0]] = captured.tensors[i].detach().clone();
  const SplitPositions legal = legal_split_positions(captured.graph);
  const SplitGraph split =
      split_graph(captured.graph, {legal[legal.size() / 3], legal[2 * legal.size() / 3]});
  for (const std::int64_t rows : {1, 2, 3, 8}) {
    SCOPED_TRACE(rows);
    const value::Args args = batch(rows);
    torch::manual_seed(3);
    const auto expected = value::flatten(forward(args, {})).leaves;
    for (auto& parameter : module.parameters()) parameter.mutable_grad() = at::Tensor();
    expected[0].toTensor().square().sum().backward();
    GraphModule unsplit(captured.graph, captured.tensors);
    torch::manual_seed(3);
    const auto got = value::flatten(unsplit.forward(args)).leaves;
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(same_bits(got[i].toTensor(), expected[i].toTensor()));
    test::StageRunner stages(split, start);
    torch::manual_seed(3);
    const auto outputs = stages.forward(flatten_inputs(captured.graph, args, {}));
    EXPECT_TRUE(same_bits(outputs[0].toTensor(), expected[0].toTensor()));
    std::vector<at::Tensor> seeds(outputs.size());
    seeds[0] = 2 * outputs[0].toTensor().detach();
    stages.backward(seeds);
    for (const auto& [parameter, gradient] : stages.gradients()) {
      const at::Tensor* wanted = nullptr;
      for (const auto& [key, tensor] : model.parameters) {
        if (key == parameter) wanted = &tensor;
      }
      ASSERT_NE(wanted, nullptr) << parameter;
      EXPECT_TRUE(at::allclose(gradient, wanted->grad(), 1e-4, 1e-5)) << parameter;
    }
  }
}

TEST(GraphDynamicBatch, OneGraphRunsAnyBatchSize) {
  torch::manual_seed(1);
  test::Mlp mlp;
  expect_any_batch("mlp", *mlp, test::forward_of(mlp), [](std::int64_t n) {
    return value::Args{torch::randn({n, 6})};
  });
  test::Gpt gpt;
  expect_any_batch("gpt", *gpt, test::forward_of(gpt), [](std::int64_t n) {
    return value::Args{torch::randint(0, 13, {n, 6})};
  });
  test::UNet unet;
  expect_any_batch("unet", *unet, test::forward_of(unet), [](std::int64_t n) {
    return value::Args{torch::randn({n, 1, 8, 8})};
  });
  // Sizes in factory functions, in expands, as numbers and in arithmetic.
  torch::nn::Linear lin(4, 4);
  const ForwardFunction sizes = [&](const value::Args& args, const value::Kwargs&) {
    const auto x = args.at(0).toTensor();
    const auto n = x.size(0);
    auto y = lin->forward(x) + torch::arange(n).unsqueeze(1) + torch::ones({1, 4}).expand({n, 4});
    y = torch::cat({y, torch::zeros({2 * n + 1, 4})}).slice(0, 0, n + 1).sum(0) / n;
    return IValue(y + lin->forward(x).reshape({n * 2, 2}).sum());
  };
  expect_any_batch("sizes", *lin, sizes, [](std::int64_t n) { return value::Args{torch::randn({n, 4})}; });
}

std::string dynamic_capture_error(const ForwardFunction& forward) {
  return test::error_message<UsageError>([&] { capture_dynamic(forward, {}, {torch::ones({3, 4})}); });
}

TEST(GraphDynamicBatch, RejectsOtherDependenciesOnBatchSize) {
  EXPECT_THAT(dynamic_capture_error([](const value::Args& args, const value::Kwargs&) {
                const ModuleScope scope("square");
                const auto x = args[0].toTensor();
                return IValue(torch::zeros({x.size(0) * x.size(0)}) + x.sum());
              }),
              testing::AllOf(HasSubstr("aten::zeros of module square"), HasSubstr("dynamic_batch")));
  EXPECT_THAT(dynamic_capture_error([](const value::Args& args, const value::Kwargs&) {
                const auto x = args[0].toTensor();
                return IValue(x.size(0) > 4 ? x.relu() : x.tanh());
              }),
              HasSubstr("aten::relu"));
  EXPECT_THAT(dynamic_capture_error([](const value::Args& args, const value::Kwargs&) {
                auto x = args[0].toTensor();
                for (std::int64_t i = 0; i < x.size(0); ++i) x = x + 1;
                return IValue(x);
              }),
              HasSubstr("different operators"));
  EXPECT_THAT(dynamic_capture_error([](const value::Args& args, const value::Kwargs&) {
                const auto x = args[0].toTensor();
                return IValue(x * std::sqrt(double(x.size(0))));
              }),
              HasSubstr("not an integer"));
}

}  // namespace
}  // namespace penstock::graph
