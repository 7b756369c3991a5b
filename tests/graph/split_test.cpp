// Stages run in turn compared with the unsplit graph, for every number of stages; and invalid split
// positions.
#include "graph/passes/graph_costs.h"
#include "support/error_message.h"
#include "support/stage_runner.h"
#include "support/tensor_file.h"
#include "unsplit_model.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/pt2.h>
#include <penstock/graph/split.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace penstock::graph {
namespace {

using c10::IValue;
using test::archive;
using test::expect_equal;
using test::expect_partition;
using test::UnsplitModel;
using testing::HasSubstr;

TEST(GraphSplit, AnyNumberOfStagesMatchesUnsplitGraph) {
  const unsigned seed = 7;
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  // In the real architectures, the gradients of values that several stages read are summed in another order.
  const std::vector<std::string> exact{"mlp", "gpt", "convnet", "mixed", "lstm", "marked", "overlap"},
      close{"gpt2", "llama", "bert", "t5", "vit", "encoder", "unet", "gru"};
  std::vector<std::string> archives = exact;
  archives.insert(archives.end(), close.begin(), close.end());
  for (const std::string& name : archives) {
    const bool is_exact = std::find(exact.begin(), exact.end(), name) != exact.end();
    const UnsplitModel unsplit(archive(name));
    const SplitPositions legal = legal_split_positions(unsplit.file.graph());
    ASSERT_FALSE(legal.empty()) << name;
    for (std::size_t count = 1; count <= std::min<std::size_t>(8, legal.size()); ++count) {
      for (int round = 0; round < 3; ++round) {
        SplitPositions positions;
        std::sample(legal.begin(), legal.end(), std::back_inserter(positions), count, random);
        SCOPED_TRACE(name + ", split before nodes " + testing::PrintToString(positions));
        expect_equal(unsplit, positions, is_exact);
        expect_partition(unsplit.file.graph(), split_graph(unsplit.file.graph(), positions));
      }
    }
  }
}

TEST(GraphSplit, EverySplitPositionMatchesUnsplitGraph) {
  for (const std::string name : {"mlp", "gpt", "convnet", "mixed", "lstm", "marked", "overlap", "gpt2",
                                 "llama", "bert", "t5", "vit", "encoder", "unet", "gru"}) {
    const UnsplitModel unsplit(archive(name));
    for (const std::size_t position : legal_split_positions(unsplit.file.graph())) {
      SCOPED_TRACE(name + ", split before node " + std::to_string(position));
      expect_equal(unsplit, {position}, false);
      expect_partition(unsplit.file.graph(), split_graph(unsplit.file.graph(), {position}));
    }
  }
}

TEST(GraphSplit, ComputedWeightsDoNotCrossStages) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x : float32[2, 3],), {})
  param %w : float32[3, 3] = "w"
  param %v : float32[3, 3] = "v"
  buffer %b : float32[3, 3] = "b"
  %t : float32[3, 3] = aten::t(%w)
  %u : float32[3, 3] = aten::t(%v)
  %f : float32[3, 3] = aten::t(%b)
  %a : float32[2, 3] = aten::mm(%x, %u)
  %g : float32[3, 3] = aten::view(%t, [3, 3])
  %c : float32[2, 3] = aten::relu(%a)
  %d : float32[2, 3] = aten::mm(%c, %g)
  %e : float32[2, 3] = aten::mm(%d, %f)
  %h : float32[2, 3] = aten::mm(%e, %u)
  return %h
})");
  EXPECT_EQ(legal_split_positions(graph),
            (SplitPositions{5, 6, 7, 8}));  // not before a view: that is the same position
  const SplitGraph split = split_graph(graph, {5, 7, 8});
  std::vector<std::vector<std::string>> held;
  for (const StageGraph& stage : split.stages) {
    held.emplace_back();
    for (const Slot& slot : stage.graph.slots) held.back().push_back(slot.names[0]);
  }
  EXPECT_EQ(held, (std::vector<std::vector<std::string>>{{"v"}, {"w"}, {"b"}, {"v"}}));
  for (std::size_t s = 1; s < 4; ++s) {
    EXPECT_EQ(split.stages[s].sources,
              std::vector<InputSource>{(FromStage{StageId(static_cast<int>(s) - 1), 0})});
  }
  ASSERT_EQ(split.shared.size(), 1U);
  EXPECT_EQ(split.shared[0].stages, (std::vector<StageId>{StageId(0), StageId(3)}));
  // A view of a buffer that is written no longer has the buffer's old elements.
  const Graph written = parse_graph(R"(graph {
  inputs ((%x : float32[3],), {})
  buffer %b : float32[3] = "b"
  %a : float32[3] = aten::add.Tensor(%b, %x, 1)
  %v : float32[3] = aten::view(%b, [3])
  %c : float32[3] = aten::mul.Tensor(%v, %a)
  write %b <- %a
  return %c
})");
  const SplitGraph late = split_graph(written, {2});
  EXPECT_EQ(late.stages[1].sources.size(), 2U);
  try {
    split_graph(graph, {1, 2});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("stage 0 would have no nodes to run"));
  }
}

TEST(GraphSplit, SplitsAtMarksAndModulePaths) {
  const UnsplitModel unsplit(archive("gpt"));
  const Graph& graph = unsplit.file.graph();
  const SplitPositions marks = split_at_marks(graph);
  ASSERT_EQ(marks.size(), 1U);
  expect_equal(unsplit, marks, true);
  const SplitPositions beginning = split_at_modules(graph, {{"blocks.1", SplitPoint::Beginning}});
  ASSERT_EQ(beginning.size(), 1U);
  EXPECT_EQ(graph.nodes[beginning[0]].module.substr(0, 8), "blocks.1");
  expect_equal(unsplit, beginning, true);
  EXPECT_EQ(split_at_modules(graph, {{"blocks.0", SplitPoint::End}, {"blocks.1", SplitPoint::End}}).size(),
            2U);
  try {
    split_at_modules(graph, {{"block.1", SplitPoint::End}});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean blocks.1"));
  }
}

TEST(GraphSplit, DoesNotSendTiedWeightsOrPositions) {
  const Pt2Archive file(archive("gpt.pt2"));
  const SplitGraph split = split_graph(file.graph(), split_at_marks(file.graph()));
  ASSERT_EQ(split.shared.size(), 1U);
  EXPECT_EQ(split.shared[0].stages, (std::vector<StageId>{StageId(0), StageId(1)}));
  EXPECT_EQ(split.shared[0].names[0], "token.weight");
  ASSERT_EQ(split.stages[1].sources.size(), 1U);  // only the hidden state, no sizes
  EXPECT_EQ(std::get<FromStage>(split.stages[1].sources[0]), (FromStage{StageId(0), 0}));
  EXPECT_THAT(to_string(split), HasSubstr("from stage 0, output 0"));
  EXPECT_THAT(to_string(split), HasSubstr("token.weight = head.weight  in stages 0, 1"));
}

TEST(GraphSplit, DistinguishesInputsStageValuesAndConstants) {
  const Pt2Archive file(archive("mixed.pt2"));
  const SplitPositions legal = legal_split_positions(file.graph());
  const std::string table = to_string(split_graph(file.graph(), {legal[legal.size() / 2]}));
  EXPECT_THAT(table, HasSubstr("from the user, input 0"));
  EXPECT_THAT(table, HasSubstr("from stage 0, output 0"));
  EXPECT_THAT(table, HasSubstr("float32[4]  a constant of the model"));
}

TEST(GraphSplit, SkipValueGoesDirectlyFromProducerToConsumer) {
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
  EXPECT_EQ(split.stages[1].sources, (std::vector<InputSource>{FromStage{StageId(0), 0}}));
  EXPECT_EQ(split.stages[2].sources, (std::vector<InputSource>{FromStage{StageId(1), 0}}));
  EXPECT_EQ(split.stages[3].sources,
            (std::vector<InputSource>{FromStage{StageId(2), 0}, FromStage{StageId(0), 0}, FromUser{1}}));
  test::StageRunner runner(split, {});
  const at::Tensor x = at::rand({5, 3}), late = at::rand({3});
  const auto out = runner.forward({x, late});
  EXPECT_TRUE(at::equal(out[0].toTensor(), x.relu() * 2 + 1 + late));
}

TEST(GraphSplit, RejectsSplitThroughMemoryWrittenLater) {
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
  for (const std::size_t position : {1, 2, 3, 6}) {
    EXPECT_ERROR(split_graph(graph, {position}), UsageError, "the model cannot be split before") << position;
    EXPECT_TRUE(why_not_splittable(graph, position)) << position;
  }
  for (const std::size_t position : {4, 5})
    EXPECT_EQ(split_graph(graph, {position}).stages.size(), 2U) << position;
  EXPECT_EQ(legal_split_positions(graph), (SplitPositions{4, 5}));
  try {
    split_graph(graph, {2});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("aten::add_.Tensor of module second"));
    EXPECT_THAT(error.what(), HasSubstr("aten::relu of module first"));
    EXPECT_THAT(error.what(),
                HasSubstr("hint: move the split point, or make the model write to a clone() instead"));
  }
}

TEST(GraphCosts, CountsMatrixProductFlopsExactly) {
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
}  // namespace penstock::graph
