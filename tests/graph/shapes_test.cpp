// Shape inference compared with Python's records and with actual runs; profiles.
#include "graph/passes/passes.h"
#include "graph/run/node_profile.h"
#include "support/error_message.h"
#include "support/python_reference.h"
#include "support/same_bits.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>

#include <gmock/gmock.h>

namespace penstock::graph {
namespace {

using c10::IValue;
using test::archive;
using ::testing::HasSubstr;

const std::vector<std::string> kModels{"mlp",  "gpt",   "convnet", "mixed", "lstm",
                                       "gpt2", "llama", "bert",    "t5",    "vit"};

TEST(GraphCheck, ReportsStructureThatDoesNotMatch) {
  Graph graph = parse_graph(R"(graph {
  inputs ((%x : float32[2]), {})
  %y = aten::relu(%x)
  return (%x, %y)
})");
  graph.outputs.pop_back();
  const std::string message = test::error_message<UsageError>([&] { check_graph(graph); });
  EXPECT_THAT(message, HasSubstr("the graph has 1 inputs and 1 outputs, but their structures have 1 and 2 "
                                 "leaves"));
  EXPECT_THAT(message, HasSubstr("hint: set input_structure and output_structure"));
}

TEST(GraphShapes, MatchPythonForExportedInputs) {
  for (const std::string& name : kModels) {
    SCOPED_TRACE(name);
    const Pt2Archive file(archive(name + ".pt2"));
    const Graph& graph = file.graph();
    Graph bare = graph;
    for (const Node& node : bare.nodes) {
      if (!node.mode.autocast.empty()) continue;  // only the dtype must be known
      for_each_result(node, [&](ValueId id) { bare.value(id).meta.reset(); });
    }
    const Graph found = propagate_shapes(bare);
    for (std::size_t i = 0; i < graph.values.size(); ++i) {
      if (!graph.values[i].meta) continue;
      ASSERT_TRUE(found.values[i].meta) << graph.values[i].name;
      EXPECT_EQ(found.values[i].meta->dtype, graph.values[i].meta->dtype) << graph.values[i].name;
      ASSERT_EQ(found.values[i].meta->sizes.size(), graph.values[i].meta->sizes.size())
          << graph.values[i].name;
      for (std::size_t d = 0; d < graph.values[i].meta->sizes.size(); ++d)
        EXPECT_EQ(found.values[i].meta->sizes[d].size, graph.values[i].meta->sizes[d].size)
            << graph.values[i].name;
    }
  }
}

TEST(GraphShapes, AreInferredForOtherInputs) {
  const Pt2Archive file(archive("gpt.pt2"));
  const Graph wide = propagate_shapes(file.graph(), {{.dtype = at::kLong, .sizes = {{9, "s52"}, {5, ""}}}});
  GraphModule module(file.graph(), file.load(file.graph().slots));
  const std::vector<IValue> outputs = module.run({at::zeros({9, 5}, at::kLong)});
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const ValueMeta& meta = *wide.value(*wide.outputs[i].value()).meta;
    ASSERT_EQ(static_cast<std::int64_t>(meta.sizes.size()), outputs[i].toTensor().dim());
    for (std::size_t d = 0; d < meta.sizes.size(); ++d)
      EXPECT_EQ(meta.sizes[d].size, outputs[i].toTensor().size(static_cast<std::int64_t>(d)));
  }
}

TEST(GraphShapes, AreRejectedIfDataDependent) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x : float32[4],), {})
  %n = aten::nonzero(%x) @ pick
  return %n
})");
  try {
    propagate_shapes(graph);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("aten::nonzero of module pick"));
  }
  const Graph wrong = parse_graph(R"(graph {
  inputs ((%x : float32[4], %y : float32[3]), {})
  %n = aten::add.Tensor(%x, %y, 1) @ sum
  return %n
})");
  EXPECT_ERROR(propagate_shapes(wrong), ShapeError, "of module sum");
}

TEST(GraphProfile, TimesEveryNodeAndKeepsBuffers) {
  const Pt2Archive file(archive("convnet.pt2"));
  GraphModule module(file.graph(), file.load(file.graph().slots));
  std::vector<at::Tensor> before;
  for (const auto& [name, buffer] : module.named_buffers()) before.push_back(buffer.clone());
  const auto tensors = test::read_tensors(archive("convnet.safetensors"));
  const std::vector<double> seconds = profile_nodes(module, test::inputs_of(file.graph(), tensors, "r0."));
  ASSERT_EQ(seconds.size(), file.graph().nodes.size());
  for (std::size_t i = 0; i < seconds.size(); ++i) EXPECT_GT(seconds[i], 0) << file.graph().nodes[i].name();
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(test::same_bits(module.named_buffers()[i].tensor, before[i]));
  const std::string text = profile_text(file.graph(), seconds, 3);
  EXPECT_THAT(text, HasSubstr("GFLOP/s"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_ERROR(profile_text(file.graph(), std::vector<double>{1}, 3), UsageError,
               "`seconds` must have one entry per node");
}

}  // namespace
}  // namespace penstock::graph
