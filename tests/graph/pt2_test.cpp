// Imported models compared with Python's results on this machine: outputs, gradients and buffers, bitwise.
#include "graph/passes/passes.h"
#include "support/error_message.h"
#include "support/python_reference.h"
#include "support/same_bits.h"
#include "support/tensor_file.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_module.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/pt2.h>
#include <penstock/graph/split.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

namespace penstock::graph {
namespace {

using c10::IValue;
using test::archive;
using test::inputs_of;
using test::same_bits;
using testing::HasSubstr;
using SplitPoints = std::map<std::string, SplitPoint>;

TEST(GraphPt2, IsBitwiseEqualToPython) {
  const std::string& results = test::results_of_python();
  if (results.empty()) GTEST_SKIP() << "PENSTOCK_PYTHON names no Python with torch 2.13";
  for (const char* name :
       {"mlp", "gpt", "convnet", "mixed", "lstm", "marked", "overlap", "encoder", "unet", "gru"})
    test::expect_as_python(archive(name), results);
}

TEST(GraphPt2, RealArchitecturesMatchPython) {
  const std::string& results = test::results_of_python();
  if (results.empty()) GTEST_SKIP() << "PENSTOCK_PYTHON names no Python with torch 2.13";
  for (const char* name : {"gpt2", "llama", "bert", "t5", "vit"})
    test::expect_as_python(archive(name), results);
}

TEST(GraphPt2, TextFormatRoundTripsAndRunsTheSame) {
  for (const char* name : {"mlp", "gpt", "convnet", "mixed", "lstm", "marked"}) {
    SCOPED_TRACE(name);
    const Pt2Archive file(archive(std::string(name) + ".pt2"));
    const std::string text = to_string(file.graph());
    const Graph parsed = parse_graph(text);
    EXPECT_EQ(to_string(parsed), text);
    const auto tensors = test::read_tensors(archive(std::string(name) + ".safetensors"));
    GraphModule imported(file.graph(), file.load(file.graph().slots)), again(parsed, file.load(parsed.slots));
    at::manual_seed(0);
    const auto expected = imported.run(inputs_of(parsed, tensors, "r0."));
    at::manual_seed(0);
    const auto outputs = again.run(inputs_of(parsed, tensors, "r0."));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].isTensor()) continue;
      EXPECT_TRUE(same_bits(outputs[i].toTensor(), expected[i].toTensor()));
    }
  }
}

TEST(GraphPt2, TiedWeightsShareOneSlotWithBothNames) {
  const Pt2Archive file(archive("gpt.pt2"));
  int tied = 0;
  for (const Slot& slot : file.graph().slots) {
    if (slot.names.size() < 2) continue;
    ++tied;
    EXPECT_EQ(slot.names, (std::vector<std::string>{"token.weight", "head.weight"}));
  }
  EXPECT_EQ(tied, 1);
}

TEST(GraphPt2, KeepsModulePathsMarksAndOutputNames) {
  const Pt2Archive file(archive("gpt.pt2"));
  const Graph& graph = file.graph();
  int marks = 0;
  bool found = false;
  for (const Node& node : graph.nodes) {
    marks += node.kind == Node::Kind::Split ? 1 : 0;
    found = found || (node.name() == "aten::linear" && node.module == "blocks.1.qkv");
  }
  EXPECT_EQ(marks, 1);
  EXPECT_TRUE(found);
  EXPECT_EQ(graph.output_paths(), (std::vector<std::string>{"output.logits", "output.hidden.0"}));
}

TEST(GraphPt2, KeepsAnnotatedSplitPointsAndDistinguishesCalls) {
  // Python marked the beginning of `block`, which runs three times, and of `last`.
  const Pt2Archive file(archive("marked.pt2"));
  const Graph& graph = file.graph();
  EXPECT_EQ(graph.output_paths(), (std::vector<std::string>{"output.logits", "output.hidden"}));
  const SplitPositions marks = split_at_marks(graph);
  ASSERT_EQ(marks.size(), 4U);
  const auto at = [&](const SplitPoints& points) { return split_at_modules(graph, points); };
  EXPECT_EQ(at({{"block", SplitPoint::Beginning}, {"last", SplitPoint::Beginning}}), marks);
  EXPECT_EQ(at({{"block@1", SplitPoint::Beginning}}), SplitPositions{marks[1]});
  EXPECT_EQ(at({{"block", SplitPoint::End}}).size(), 3U);
  EXPECT_EQ(at({{"block.qkv@2", SplitPoint::End}}).size(), 1U);
  EXPECT_EQ(graph.nodes[at({{"block.qkv@2", SplitPoint::End}})[0] - 1].name(), "aten::linear");
  EXPECT_ERROR(at({{"block@3", SplitPoint::Beginning}}), UsageError, "no operator ran in module 'block@3'");
  // All calls use the same weights: three stages share them.
  const SplitGraph split = split_graph(graph, marks);
  ASSERT_EQ(split.shared.size(), 2U);
  for (const SharedSlot& slot : split.shared)
    EXPECT_EQ(slot.stages, (std::vector<StageId>{StageId(1), StageId(2), StageId(3)}));
}

TEST(GraphPt2, OverlappingWeightsShareMemoryAndStayInOneStage) {
  const Pt2Archive file(archive("overlap.pt2"));
  const Graph& graph = file.graph();
  const std::vector<at::Tensor> tensors = file.load(graph.slots);
  const auto tensor = [&](const std::string& name) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (graph.slots[i].names[0] == name) return tensors[i];
    }
    throw UsageError(name);
  };
  const at::NoGradGuard no_grad;
  tensor("high").fill_(7);  // its rows 0 and 1 are rows 3 and 4 of `low`
  EXPECT_EQ(tensor("low")[3][0].item<float>(), 7.0F);
  EXPECT_EQ(tensor("middle")[1][0].item<float>(), 7.0F);
  EXPECT_NE(tensor("low")[2][0].item<float>(), 7.0F);
  EXPECT_TRUE(tensor("low").requires_grad() && tensor("low").is_leaf());
  std::size_t first = graph.nodes.size(), last = 0;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for_each_read(graph.nodes[i], [&](ValueId id) {
      const Slot* slot = graph.find_slot(id);
      if (!slot || slot->names[0].starts_with("lin")) return;
      first = std::min(first, i);
      last = std::max(last, i);
    });
  }
  for (const std::size_t position : legal_split_positions(graph))
    EXPECT_TRUE(position <= first || position > last) << position;
  EXPECT_THAT(why_not_splittable(graph, last).value_or(""), HasSubstr("share memory"));
}

TEST(GraphPt2, ReportsMismatchedSize) {
  const Pt2Archive file(archive("convnet.pt2"));
  GraphModule module(file.graph(), file.load(file.graph().slots));
  try {
    module.forward({at::zeros({3, 2, 8, 8})});
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_THAT(error.what(), HasSubstr("dim 0 of args[0] (x) is 3, expected 2"));
    EXPECT_THAT(error.what(), HasSubstr("dynamic batch"));
  }
  const Pt2Archive dynamic(archive("mlp.pt2"));
  GraphModule mlp(dynamic.graph(), dynamic.load(dynamic.graph().slots));
  EXPECT_ERROR(mlp.forward({at::zeros({65, 6})}), ShapeError, "is 65, but the model was exported for");
  EXPECT_ERROR(mlp.forward({at::zeros({4, 6}), at::zeros({1})}), UsageError, "the arguments are");
  EXPECT_EQ(mlp.forward({at::zeros({9, 6})}).toTensor().size(0), 9);
}

TEST(GraphPt2, EvalModeMatchesPython) {
  // Exported in training mode: attention uses dropout, and instance norm uses the statistics of its input.
  const std::string& results = test::results_of_python();
  if (results.empty()) GTEST_SKIP() << "PENSTOCK_PYTHON names no Python with torch 2.13";
  at::set_num_threads(1);
  const Pt2Archive file(archive("marked.pt2"));
  const auto given = test::read_tensors(archive("marked.safetensors"));
  const auto expected = test::read_tensors(results + "/marked.safetensors");
  GraphModule module(file.graph(), file.load(file.graph().slots));
  const auto outputs = [&] { return module.run(inputs_of(file.graph(), given, "r0.")); };
  const auto trained = outputs();
  module = GraphModule(file.graph(), file.load(file.graph().slots));
  module.train(false);
  const auto evaluated = outputs();
  const auto paths = file.graph().output_paths();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    EXPECT_TRUE(same_bits(evaluated[i].toTensor(), expected.at("eval." + paths[i]))) << paths[i];
    EXPECT_FALSE(same_bits(trained[i].toTensor(), expected.at("eval." + paths[i]))) << paths[i];
  }
}

TEST(GraphPt2, EvalModeDisablesDropoutAndStatistics) {
  const Pt2Archive file(archive("convnet.pt2"));
  GraphModule module(file.graph(), file.load(file.graph().slots));
  module.train(false);
  const at::Tensor before = module.named_buffers()[0].tensor.clone();
  const at::Tensor x = at::rand({2, 2, 8, 8});
  EXPECT_TRUE(same_bits(module.forward({x}).toTensor(), module.forward({x}).toTensor()));
  EXPECT_TRUE(same_bits(module.named_buffers()[0].tensor, before));
  module.train();
  EXPECT_FALSE(same_bits(module.forward({x}).toTensor(), module.forward({x}).toTensor()));
  EXPECT_FALSE(same_bits(module.named_buffers()[0].tensor, before));
}

}  // namespace
}  // namespace penstock::graph
