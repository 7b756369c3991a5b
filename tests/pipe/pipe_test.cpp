// Tests of Pipe: its description of stages, and results that match the model.
#include "graph/passes/graph_costs.h"
#include "pipe/balance.h"
#include "pipe/graph_layers.h"
#include "pipe/recomputed_graph.h"
#include "support/error_message.h"
#include "support/models/capture_models.h"
#include "support/same_bits.h"
#include "support/temp_dir.h"
#include "support/tensor_file.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/pt2.h>
#include <penstock/pipe/pipe.h>
#include <penstock/pipe/pipe_info.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <numeric>

namespace penstock::pipe {
namespace {

using c10::IValue;
using test::archive;
using test::same_bits;
using testing::HasSubstr;

TEST(PipeInfo, HasNoGraphForHandWrittenStages) {
  const pipe::PipeInfo info{.num_stages = 4, .has_loss_and_backward = true};
  EXPECT_FALSE(info.graph.has_value());
}

// Sizes that a later stage recomputes are not listed as its work.
TEST(Pipe, ListsModulesOfStageWithoutRecomputedSizes) {
  const graph::Graph graph = graph::parse_graph(R"(graph {
  inputs ((%x : float32["n"=2, 3]), {})
  %a : float32["n"=2, 3] = aten::relu(%x) @ layers.0
  %n : int "n" = aten::sym_size.int(%a, 0) @ layers.0
  %m : int = scalar::mul(%n, 3) @ layers.0.self_attn
  %b : float32["n"=2, 3] = aten::relu(%a) @ layers.1
  %c = aten::view(%b, [%m]) @ layers.1.view
  return %c
})");
  const SplitPolicy before_layer_1 = [](const graph::Graph&) { return graph::SplitPositions{3}; };
  Pipe pipe(
      graph, [](const std::vector<graph::Slot>&) { return std::vector<at::Tensor>{}; }, before_layer_1);
  EXPECT_THAT(module_paths(pipe.stage_graph(StageId(1))), testing::Contains("layers.0.self_attn"));
  EXPECT_THAT(pipe.stage_module_paths(StageId(0)),
              testing::ElementsAre("layers", "layers.0", "layers.0.self_attn"));
  EXPECT_THAT(pipe.stage_module_paths(StageId(1)),
              testing::ElementsAre("layers", "layers.1", "layers.1.view"));
}

TEST(Pipe, MatchesModelForEverySplitSpec) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  test::Gpt gpt(4);
  gpt->eval();
  const auto tokens = torch::randint(0, 13, {3, 6});
  const auto expected = gpt->forward(tokens);
  const std::vector<std::pair<SplitSpec, int>> specs = {
      {AtMarks{}, 4},
      {SplitPoints{{"blocks.2", graph::SplitPoint::Beginning}}, 2},
      {SplitPoints{{"blocks.0", graph::SplitPoint::End}, {"blocks.3", graph::SplitPoint::Beginning}}, 3},
      {Balanced{3, BalanceBy::Parameters}, 3},
      {Balanced{5, BalanceBy::Flops}, 5},
      {Balanced{2, BalanceBy::MeasuredTime}, 2},
      {SplitPolicy(
           [](const graph::Graph& graph) { return graph::SplitPositions{legal_split_positions(graph)[3]}; }),
       2}};
  for (const auto& [spec, stages] : specs) {
    Pipe pipe = pipeline(gpt, {tokens}, {}, spec);
    EXPECT_EQ(pipe.num_stages(), stages) << spec.index();
    EXPECT_TRUE(same_bits(pipe.forward({tokens}).toTensor(), expected)) << spec.index();
  }
}

TEST(Pipe, StagesShareModelTensorsAndNames) {
  test::Mlp mlp;
  Pipe pipe = pipeline(mlp, {torch::randn({2, 6})}, {}, Balanced{4});
  std::map<std::string, at::Tensor> held;
  for (int s = 0; s < 4; ++s) {
    for (const auto& [name, tensor] : pipe.stage_module(StageId(s))->named_parameters()) {
      EXPECT_TRUE(held.emplace(name, tensor).second) << name;
    }
  }
  const auto parameters = mlp->named_parameters();
  ASSERT_EQ(held.size(), parameters.size());
  for (const auto& item : parameters) EXPECT_TRUE(held.at(item.key()).is_same(item.value()));
}

TEST(Pipe, MovesConstantDevicesWithStage) {
  torch::nn::Linear linear(4, 4);
  const graph::ForwardFunction forward = [&](const value::Args& args, const value::Kwargs&) {
    const at::Tensor positions = torch::arange(4, at::device(at::kCPU).dtype(at::kFloat));
    return IValue(torch::tanh(linear(args[0].toTensor() * positions)) + torch::zeros({4}));
  };
  Pipe pipe = pipeline_of(forward, model_tensors(*linear), {torch::randn({2, 4})}, {}, Balanced{2});
  const at::Device device(at::kMeta);
  std::vector<IValue> values{torch::randn({2, 4}, device)};
  for (int s = 0; s < 2; ++s) {
    values = pipe.stage_module(StageId(s), device)->run(values);
    for (const IValue& value : values) EXPECT_EQ(value.toTensor().device(), device);
  }
}

TEST(Pipe, LoadsOnlyRequestedStage) {
  Pipe pipe = load_pt2(archive("gpt.pt2"));
  ASSERT_EQ(pipe.num_stages(), 2);
  const auto last = pipe.stage_module(StageId(1));
  for (const auto& [name, tensor] : last->named_parameters()) {
    EXPECT_THAT(
        name, testing::AnyOf("token.weight", testing::StartsWith("blocks.1."), testing::StartsWith("norm.")));
  }
  EXPECT_EQ(pipe.info().num_stages, 2);
  EXPECT_FALSE(pipe.info().has_loss_and_backward);
  EXPECT_THAT(*pipe.info().graph, HasSubstr("pipe_split"));
  EXPECT_THAT(to_string(pipe), HasSubstr("stage 1\ngraph {"));
  EXPECT_THAT(pipe.graphviz(), HasSubstr("stage0 -> stage1"));
  EXPECT_TRUE(
      load_pt2(archive("gpt.pt2"), AtMarks{}, {.loss_output = "output.logits"}).info().has_loss_and_backward);
  EXPECT_ERROR(load_pt2(archive("gpt.pt2"), AtMarks{}, {.loss_output = "output.loss"}), UsageError,
               "the model has no output 'output.loss'");
}

TEST(Pipe, ReadsOnlyWeightsOfItsStage) {
  // One byte of a weight of stage 0 is damaged: loading stage 1 is unaffected.
  std::ifstream file(archive("gpt.pt2"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const at::Tensor weight = graph::Pt2Archive(archive("gpt.pt2")).load("blocks.0.qkv.weight");
  const std::size_t at =
      bytes.find(std::string(static_cast<const char*>(weight.data_ptr()), weight.nbytes()));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  const test::TempDir dir;
  const std::string path = dir / "model.pt2";
  std::ofstream(path, std::ios::binary) << bytes;
  Pipe pipe = load_pt2(path);
  EXPECT_GT(pipe.stage_module(StageId(1))->named_parameters().size(), 0U);
  EXPECT_ERROR(pipe.stage_module(StageId(0)), ParseError, "is damaged: the checksum does not match");
}

//! The least possible weight of the heaviest stage, by exhaustive search over the split positions.
double best_by_brute_force(const std::vector<double>& sums, const graph::SplitPositions& positions,
                           std::size_t from, std::size_t begin, int stages) {
  if (stages == 1) return sums.back() - sums[begin];
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t i = from; i < positions.size(); ++i) {
    const double rest = best_by_brute_force(sums, positions, i + 1, positions[i], stages - 1);
    best = std::min(best, std::max(sums[positions[i]] - sums[begin], rest));
  }
  return best;
}

TEST(PipeBalance, MinimizesHeaviestStage) {
  test::Gpt gpt(2);
  const graph::Captured captured = capture(
      [&](const value::Args& args, const value::Kwargs&) { return IValue(gpt->forward(args[0].toTensor())); },
      model_tensors(*gpt), {torch::randint(0, 13, {3, 6})});
  const graph::Graph& graph = captured.graph;
  for (const auto& weights : {parameter_weights(graph), flop_weights(graph)}) {
    std::vector<double> sums(weights.size() + 1, 0);
    std::partial_sum(weights.begin(), weights.end(), sums.begin() + 1);
    for (int stages = 2; stages <= 4; ++stages) {
      const graph::SplitPositions boundaries = balanced_split(graph, stages, weights);
      ASSERT_EQ(boundaries.size() + 1, static_cast<std::size_t>(stages));
      double heaviest = 0;
      for (std::size_t s = 0; s <= boundaries.size(); ++s) {
        const std::size_t begin = s == 0 ? 0 : boundaries[s - 1],
                          end = s < boundaries.size() ? boundaries[s] : weights.size();
        heaviest = std::max(heaviest, sums[end] - sums[begin]);
      }
      EXPECT_DOUBLE_EQ(heaviest, best_by_brute_force(sums, legal_split_positions(graph), 0, 0, stages))
          << stages;
    }
  }
  EXPECT_ERROR(balanced_split(graph, 1000, flop_weights(graph)), UsageError, "too few for 1000 stages");
}

TEST(PipeBalance, KeepsWeightWithItsTranspose) {
  std::vector<at::Tensor> weights;
  graph::ModelTensors model;
  for (int i = 0; i < 4; ++i) {
    weights.push_back(torch::randn({5, 5}, torch::requires_grad()));
    model.parameters.emplace_back("w" + std::to_string(i), weights.back());
  }
  const graph::ForwardFunction forward = [&](const value::Args& args, const value::Kwargs&) {
    std::vector<at::Tensor> turned;  // all at the beginning, as in some models
    for (const at::Tensor& weight : weights) turned.push_back(weight.t());
    at::Tensor x = args[0].toTensor();
    for (const at::Tensor& weight : turned) x = torch::relu(x.mm(weight));
    return IValue(x);
  };
  const auto x = torch::randn({3, 5});
  for (const BalanceBy by : {BalanceBy::Parameters, BalanceBy::Flops}) {
    Pipe pipe = pipeline_of(forward, model, {x}, {}, Balanced{4, by});
    EXPECT_TRUE(pipe.split().shared.empty());
    for (int s = 0; s < 4; ++s) {
      const auto held = pipe.stage_module(StageId(s))->named_parameters();
      ASSERT_EQ(held.size(), 1U) << s;
      EXPECT_EQ(held[0].name, "w" + std::to_string(s));
      EXPECT_EQ(pipe.split().stages[static_cast<std::size_t>(s)].sources.size(), 1U);
    }
    EXPECT_TRUE(same_bits(pipe.forward({x}).toTensor(), forward({x}, {}).toTensor()));
  }
}

TEST(PipeBalance, LayersAndModulesOfGraphAddUp) {
  Pipe pipe = load_pt2(archive("gpt.pt2"), Balanced{1});
  const graph::Graph& graph = pipe.graph();
  const std::vector<double> seconds = flop_weights(graph);
  const std::vector<GraphLayer> layers = graph_layers(graph, seconds, 1000);  // at every split position
  plan::StageCosts sum{.forward = 0, .activation_bytes = 0};
  std::set<std::size_t> slots;
  for (const GraphLayer& one : layers) {
    sum.forward += one.layer.costs.forward;
    sum.activation_bytes += one.layer.costs.activation_bytes;
    sum.parameter_bytes += one.layer.costs.parameter_bytes;
    for (const std::size_t slot : one.parameters) EXPECT_TRUE(slots.insert(slot).second);
  }
  const graph::GraphCosts costs = graph_costs(graph);
  EXPECT_NEAR(sum.forward, costs.flops, 1e-6 * costs.flops);
  EXPECT_EQ(sum.activation_bytes, costs.activation_bytes);
  EXPECT_EQ(sum.parameter_bytes, costs.parameter_bytes);

  // One layer that contains each module: nothing crosses a boundary.
  const std::vector<GraphLayer> whole = graph_layers(graph, seconds, 1);
  const auto modules = recomputable_modules(graph, whole, seconds);
  ASSERT_GE(modules.size(), 2U);
  for (const plan::RecomputableModule& module : modules) {
    const RecomputedCosts expected = recomputed_costs(graph, {module.name});
    ASSERT_EQ(module.parts.size(), 1U);
    EXPECT_EQ(module.bytes(), expected.bytes) << module.name;
    EXPECT_NEAR(module.parts[0].time, expected.flops, 1e-6 * expected.flops);
  }
  // Layers that divide a module keep the values that cross; with an operator per layer, that is everything.
  EXPECT_TRUE(recomputable_modules(graph, layers, seconds).empty());
  for (const plan::RecomputableModule& divided :
       recomputable_modules(graph, graph_layers(graph, seconds, 6), seconds)) {
    const auto same = std::find_if(modules.begin(), modules.end(),
                                   [&](const auto& module) { return module.name == divided.name; });
    ASSERT_NE(same, modules.end());
    EXPECT_LE(divided.bytes(), same->bytes());
    double time = 0;
    for (const plan::RecomputableModule::Part& part : divided.parts) time += part.time;
    EXPECT_NEAR(time, same->parts[0].time, 1e-6 * time);
  }
}

TEST(PipeBalance, StageCostsSumToModelCosts) {
  Pipe pipe = load_pt2(archive("gpt.pt2"), Balanced{2});
  const plan::Costs costs = stage_costs(pipe.split());
  ASSERT_EQ(costs.stages.size(), 2U);
  EXPECT_GT(costs.stages[0].output_bytes, 0U);
  check_costs(costs, 2);
}

}  // namespace
}  // namespace penstock::pipe
