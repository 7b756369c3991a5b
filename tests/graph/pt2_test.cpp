// Imported models against Python's eager run: outputs, gradients and buffers, bit for bit.
#include "as_python.h"
#include "tensor_file.h"

#include <penstock/base/error.h>
#include <penstock/graph/module.h>
#include <penstock/graph/passes.h>
#include <penstock/graph/pt2.h>
#include <penstock/graph/text.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

namespace penstock {
namespace {

using c10::IValue;
using test::archive;
using test::inputs_of;
using test::same_bits;
using testing::HasSubstr;

TEST(Pt2, EqualsPythonBitForBit) {
  for (const char* name : {"mlp", "gpt", "convnet", "mixed", "lstm"}) test::expect_as_python(archive(name));
}

TEST(Pt2, RealArchitecturesEqualPython) {
  for (const char* name : {"gpt2", "llama", "bert", "t5", "vit"})
    test::expect_as_python(archive(name), false);
}

TEST(Pt2, TextFormReadsBackAndRunsTheSame) {
  for (const char* name : {"mlp", "gpt", "convnet", "mixed", "lstm"}) {
    SCOPED_TRACE(name);
    const Pt2Archive file(archive(std::string(name) + ".pt2"));
    const std::string text = to_text(file.graph());
    const Graph parsed = parse_graph(text);
    EXPECT_EQ(to_text(parsed), text);
    const auto tensors = test::read_tensors(archive(std::string(name) + ".safetensors"));
    const GraphModule whole(file.graph(), file.load(file.graph().slots)),
        again(parsed, file.load(parsed.slots));
    at::manual_seed(0);
    const auto expected = whole.run(inputs_of(parsed, tensors, "r0."));
    at::manual_seed(0);
    const auto outputs = again.run(inputs_of(parsed, tensors, "r0."));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].isTensor()) continue;
      EXPECT_TRUE(same_bits(outputs[i].toTensor(), expected[i].toTensor()));
    }
  }
}

TEST(Pt2, TiedWeightsAreOneSlotWithBothNames) {
  const Pt2Archive file(archive("gpt.pt2"));
  int tied = 0;
  for (const Slot& slot : file.graph().slots) {
    if (slot.names.size() < 2) continue;
    ++tied;
    EXPECT_EQ(slot.names, (std::vector<std::string>{"token.weight", "head.weight"}));
  }
  EXPECT_EQ(tied, 1);
}

TEST(Pt2, KeepsModulePathsMarksAndOutputNames) {
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

TEST(Pt2, SaysWhichSizeDoesNotFit) {
  const Pt2Archive file(archive("convnet.pt2"));
  const GraphModule module(file.graph(), file.load(file.graph().slots));
  try {
    module.forward({at::zeros({3, 2, 8, 8})});
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_THAT(error.what(), HasSubstr("dim 0 of args[0] (x) is 3, expected 2"));
    EXPECT_THAT(error.what(), HasSubstr("dynamic batch"));
  }
  const Pt2Archive dynamic(archive("mlp.pt2"));
  const GraphModule mlp(dynamic.graph(), dynamic.load(dynamic.graph().slots));
  EXPECT_THROW(mlp.forward({at::zeros({65, 6})}), ShapeError);
  EXPECT_THROW(mlp.forward({at::zeros({4, 6}), at::zeros({1})}), UsageError);
  EXPECT_EQ(mlp.forward({at::zeros({9, 6})}).toTensor().size(0), 9);
}

TEST(Pt2, EvalModeStopsDropoutAndStatistics) {
  const Pt2Archive file(archive("convnet.pt2"));
  GraphModule module(file.graph(), file.load(file.graph().slots));
  module.train(false);
  const at::Tensor before = module.named_buffers()[0].second.clone();
  const at::Tensor x = at::rand({2, 2, 8, 8});
  EXPECT_TRUE(same_bits(module.forward({x}).toTensor(), module.forward({x}).toTensor()));
  EXPECT_TRUE(same_bits(module.named_buffers()[0].second, before));
  module.train();
  EXPECT_FALSE(same_bits(module.forward({x}).toTensor(), module.forward({x}).toTensor()));
  EXPECT_FALSE(same_bits(module.named_buffers()[0].second, before));
}

}  // namespace
}  // namespace penstock
