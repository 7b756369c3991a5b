// Stages in turn against the whole graph, for every number of cuts; and the cuts that must be refused.
#include "stage_runner.h"
#include "tensor_file.h"

#include <penstock/base/error.h>
#include <penstock/graph/costs.h>
#include <penstock/graph/pt2.h>
#include <penstock/graph/split.h>
#include <penstock/graph/text.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace penstock {
namespace {

using c10::IValue;
using test::archive;
using test::same_bits;
using testing::HasSubstr;

struct Whole {
  explicit Whole(const std::string& name) : file(archive(name + ".pt2")) {
    at::set_num_threads(1);
    const auto expected = test::read_tensors(archive(name + ".safetensors"));
    const Graph& graph = file.graph();
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      const auto it = expected.find("r0.in." + std::to_string(i));
      inputs.push_back(it != expected.end() ? IValue(it->second) : *graph.inputs[i].baked);
    }
    const std::vector<at::Tensor> loaded = file.load(graph.slots);
    for (std::size_t i = 0; i < loaded.size(); ++i)
      tensors[graph.slots[i].names[0]] = loaded[i].detach().clone();
    GraphModule module(graph, loaded);
    at::manual_seed(0);
    outputs = module.run(inputs);
    const auto paths = graph.output_paths();
    std::vector<at::Tensor> roots, root_seeds;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto it = expected.find("r0.seed." + paths[i]);
      seeds.push_back(it == expected.end() ? at::Tensor() : it->second);
      if (it == expected.end()) continue;
      roots.push_back(outputs[i].toTensor());
      root_seeds.push_back(it->second);
    }
    torch::autograd::backward(roots, root_seeds);
    for (const auto& [parameter, tensor] : module.named_parameters()) {
      if (tensor.grad().defined()) gradients[parameter] = tensor.grad();
    }
    for (const auto& [buffer, tensor] : module.named_buffers()) buffers[buffer] = tensor;
  }

  Pt2Archive file;
  std::vector<IValue> inputs, outputs;
  std::vector<at::Tensor> seeds;
  std::map<std::string, at::Tensor> tensors, gradients, buffers;
};

void expect_equal(const Whole& whole, const Cuts& cuts, bool exact) {
  const SplitGraph split = split_graph(whole.file.graph(), cuts);
  ASSERT_EQ(split.stages.size(), cuts.size() + 1);
  test::StageRunner runner(split, whole.tensors);
  at::manual_seed(0);
  const auto outputs = runner.forward(whole.inputs);
  ASSERT_EQ(outputs.size(), whole.outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].isTensor()) continue;
    EXPECT_TRUE(same_bits(outputs[i].toTensor(), whole.outputs[i].toTensor())) << "output " << i;
  }
  runner.backward(whole.seeds);
  const auto gradients = runner.gradients();
  std::set<std::string> tied;
  for (const SharedSlot& slot : split.shared) tied.insert(slot.names[0]);
  ASSERT_EQ(gradients.size(), whole.gradients.size());
  for (const auto& [name, gradient] : whole.gradients) {
    if (exact && !tied.contains(name)) {
      EXPECT_TRUE(same_bits(gradients.at(name), gradient)) << name;
    } else {  // sums over stages have another order
      EXPECT_TRUE(at::allclose(gradients.at(name), gradient, 1e-5, 1e-6)) << name;
    }
  }
  for (const GraphModule& module : runner.modules) {
    for (const auto& [name, buffer] : module.named_buffers())
      EXPECT_TRUE(same_bits(buffer, whole.buffers.at(name))) << name;
  }
}

//! Stage parameters partition the model's; those in several stages are listed.
void expect_partition(const Graph& graph, const SplitGraph& split) {
  std::map<std::string, int> holders;
  for (const StageGraph& stage : split.stages) {
    for (const Slot& slot : stage.graph.slots) ++holders[slot.names[0]];
  }
  for (const SharedSlot& slot : split.shared)
    EXPECT_EQ(holders.at(slot.names[0]), static_cast<int>(slot.stages.size()));
  std::size_t shared = 0;
  for (const auto& [name, count] : holders) shared += count > 1 ? 1 : 0;
  EXPECT_EQ(shared, split.shared.size());
  std::set<std::int32_t> read;
  for (const Node& node : graph.nodes) for_each_read(node, [&](ValueId id) { read.insert(id.value); });
  for (const Slot& slot : graph.slots) {
    EXPECT_TRUE(!read.contains(slot.value.value) || holders.contains(slot.names[0])) << slot.names[0];
  }
}

TEST(Split, EveryNumberOfCutsEqualsTheWhole) {
  const unsigned seed = 7;
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (const std::string name : {"mlp", "gpt", "convnet", "mixed", "lstm"}) {
    const Whole whole(name);
    const Cuts legal = legal_cuts(whole.file.graph());
    ASSERT_FALSE(legal.empty()) << name;
    for (std::size_t count = 1; count <= std::min<std::size_t>(8, legal.size()); ++count) {
      for (int round = 0; round < 3; ++round) {
        Cuts cuts;
        std::sample(legal.begin(), legal.end(), std::back_inserter(cuts), count, random);
        SCOPED_TRACE(name + ", cuts before nodes " + testing::PrintToString(cuts));
        expect_equal(whole, cuts, true);
        expect_partition(whole.file.graph(), split_graph(whole.file.graph(), cuts));
      }
    }
  }
}

TEST(Split, AtMarksAndModulePaths) {
  const Whole whole("gpt");
  const Graph& graph = whole.file.graph();
  const Cuts marks = cuts_at_marks(graph);
  ASSERT_EQ(marks.size(), 1U);
  expect_equal(whole, marks, true);
  const Cuts beginning = cuts_at_modules(graph, {{"blocks.1", SplitPoint::Beginning}});
  ASSERT_EQ(beginning.size(), 1U);
  EXPECT_EQ(graph.nodes[beginning[0]].module.substr(0, 8), "blocks.1");
  expect_equal(whole, beginning, true);
  EXPECT_EQ(cuts_at_modules(graph, {{"blocks.0", SplitPoint::End}, {"blocks.1", SplitPoint::End}}).size(),
            2U);
  try {
    cuts_at_modules(graph, {{"block.1", SplitPoint::End}});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean blocks.1"));
  }
}

TEST(Split, SendsTiedWeightsNowhereAndPositionsNeither) {
  const Pt2Archive file(archive("gpt.pt2"));
  const SplitGraph split = split_graph(file.graph(), cuts_at_marks(file.graph()));
  ASSERT_EQ(split.shared.size(), 1U);
  EXPECT_EQ(split.shared[0].stages, (std::vector<int>{0, 1}));
  EXPECT_EQ(split.shared[0].names[0], "token.weight");
  ASSERT_EQ(split.stages[1].sources.size(), 1U);  // the hidden state and nothing else, sizes included
  EXPECT_EQ(std::get<FromStage>(split.stages[1].sources[0]), (FromStage{0, 0}));
  EXPECT_THAT(split.table(), HasSubstr("from stage 0, output 0"));
  EXPECT_THAT(split.table(), HasSubstr("token.weight = head.weight  in stages 0, 1"));
}

TEST(Split, ASkipGoesStraightFromProducerToConsumer) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x : float32["n"=2, 3], %late : float32[3]), {})
  %a : float32["n"=2, 3] = aten::relu(%x)
  %n : int "n" = aten::sym_size.int(%a, 0)
  %b : float32["n"=2, 3] = aten::relu(%a)
  %ones : float32[3] = aten::ones([3], None, None, None, None)
  %c : float32["n"=2, 3] = aten::relu(%b)
  %d : float32["n"=2, 3] = aten::add.Tensor(%c, %a, 1)
  %e : float32["n"=2, 3] = aten::add.Tensor(%d, %ones, 1)
  %f : float32["n"=2, 3] = aten::add.Tensor(%e, %late, 1)
  %g = aten::view(%f, [%n, 3])
  return (%g, %a)
})");
  const SplitGraph split = split_graph(graph, {2, 4, 5});
  EXPECT_EQ(split.stages[0].graph.outputs.size(), 1U);
  EXPECT_EQ(split.stages[1].sources, (std::vector<InputSource>{FromStage{0, 0}}));
  EXPECT_EQ(split.stages[2].sources, (std::vector<InputSource>{FromStage{1, 0}}));
  EXPECT_EQ(split.stages[3].sources,
            (std::vector<InputSource>{FromStage{2, 0}, FromStage{0, 0}, FromUser{1}}));
  test::StageRunner runner(split, {});
  const at::Tensor x = at::rand({5, 3}), late = at::rand({3});
  const auto out = runner.forward({x, late});
  EXPECT_TRUE(at::equal(out[0].toTensor(), x.relu() * 2 + 1 + late));
}

TEST(Split, RefusesCutsThroughMemoryThatIsWrittenLater) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x,), {})
  buffer %b : float32[3] = "b"
  %a = aten::relu(%x) @ first
  %v = aten::view(%a, [-1]) @ first
  %s = aten::relu(%a) @ second
  %w = aten::add_.Tensor(%v, 1, 1) @ second
  %c = aten::add.Tensor(%s, %a, 1)
  %u = aten::add_.Tensor(%b, 1, 1)
  %d = aten::add.Tensor(%c, %b, 1)
  return %d
})");
  for (const std::size_t cut : {1, 2, 3, 6}) {
    EXPECT_THROW(split_graph(graph, {cut}), UsageError) << cut;
    EXPECT_NE(why_not_cut(graph, cut), "") << cut;
  }
  for (const std::size_t cut : {4, 5}) EXPECT_EQ(split_graph(graph, {cut}).stages.size(), 2U) << cut;
  EXPECT_EQ(legal_cuts(graph), (Cuts{4, 5}));
  try {
    split_graph(graph, {2});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("aten::add_.Tensor of module second"));
    EXPECT_THAT(error.what(), HasSubstr("aten::relu of module first"));
  }
}

TEST(Costs, CountProductsExactly) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x : float32[8, 16],), {})
  param %w : float32[32, 16] = "w"
  %y : float32[8, 32] = aten::linear(%x, %w, None)
  %z : float32[8, 32] = aten::relu(%y)
  %v : float32[256] = aten::view(%z, [256])
  return %v
})");
  EXPECT_EQ(node_flops(graph, graph.nodes[0]), 2.0 * 8 * 16 * 32);
  EXPECT_EQ(node_flops(graph, graph.nodes[1]), 8.0 * 32);
  const GraphCosts costs = graph_costs(graph);
  EXPECT_EQ(costs.parameter_bytes, 32U * 16 * 4);
  EXPECT_EQ(costs.activation_bytes, 2U * 8 * 32 * 4);
}

}  // namespace
}  // namespace penstock
