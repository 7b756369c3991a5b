// Plans found in graphs: which layers are sharded or replicated, and real architectures compute the same with
// them.
#include "support/mesh_ranks.h"
#include "support/tensor_file.h"

#include <penstock/graph/graph_module.h>
#include <penstock/graph/pt2.h>
#include <penstock/parallel/find_parallel_plan.h>

#include <gmock/gmock.h>
#include <torch/torch.h>

namespace penstock::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kTransformer = PENSTOCK_SOURCE_DIR "/tests/parallel/archives/transformer.pt2";

TEST(ParallelFindPlan, FindsBothPairsOfEachBlock) {
  const graph::Pt2Archive file(kTransformer);
  for (const std::int64_t ranks : {2, 4}) {
    const parallel::FoundPlan found = parallel::find_parallel_plan(file.graph(), ranks);
    EXPECT_THAT(found.pairs,
                ElementsAre("blocks.0.attention.q, blocks.0.attention.k, blocks.0.attention.v by columns, "
                            "blocks.0.attention.out by rows",
                            "blocks.0.mlp.gate, blocks.0.mlp.up by columns, blocks.0.mlp.down by rows",
                            "blocks.1.attention.q, blocks.1.attention.k, blocks.1.attention.v by columns, "
                            "blocks.1.attention.out by rows",
                            "blocks.1.mlp.gate, blocks.1.mlp.up by columns, blocks.1.mlp.down by rows"));
    EXPECT_THAT(found.not_sharded, ElementsAre(HasSubstr("more than once")));
    EXPECT_EQ(found.plan.size(), 14U);
  }
}

TEST(ParallelFindPlan, ExplainsWhyLayersAreReplicated) {
  const parallel::FoundPlan uneven = parallel::find_parallel_plan(graph::Pt2Archive(kTransformer).graph(), 3);
  EXPECT_THAT(uneven.not_sharded,
              testing::Contains(HasSubstr("blocks.0.attention.q: 4 heads cannot be divided among 3")));
  EXPECT_EQ(uneven.pairs.size(), 2U);  // the feed-forward layers, unevenly
  const parallel::FoundPlan fused =
      parallel::find_parallel_plan(graph::Pt2Archive(archive("gpt.pt2")).graph(), 2);
  EXPECT_THAT(fused.not_sharded, testing::Contains(HasSubstr("blocks.0.qkv: its outputs are split")));
  EXPECT_THAT(fused.pairs, ElementsAre("blocks.0.up by columns, blocks.0.down by rows",
                                       "blocks.1.up by columns, blocks.1.down by rows"));
}

struct Ran {
  std::vector<at::Tensor> outputs, gradients;
};

//! Runs in evaluation mode, so that nothing is random; the backward starts from a weighted sum of all
//! floating-point outputs.
Ran run(graph::GraphModule& module, const std::vector<c10::IValue>& inputs) {
  module.train(false);
  Ran ran;
  at::Tensor sum;
  for (const c10::IValue& output : module.run(inputs)) {
    if (!output.isTensor() || !output.toTensor().is_floating_point()) continue;
    const at::Tensor& tensor = output.toTensor();
    ran.outputs.push_back(full_copy(tensor));
    if (!tensor.requires_grad()) continue;
    const at::Tensor part = (tensor * numbers(tensor.sizes(), 7)).sum();
    sum = sum.defined() ? sum + part : part;
  }
  sum.backward();
  for (const auto& [name, tensor] : module.named_parameters())
    ran.gradients.push_back(tensor.grad().defined() ? full_copy(tensor.grad()) : at::zeros(tensor.sizes()));
  return ran;
}

//! The dropout rate of attention is a number: no flag lets evaluation mode turn it off.
graph::Graph without_dropout(graph::Graph graph) {
  for (graph::Node& node : graph.nodes) {
    if (node.name() == "aten::scaled_dot_product_attention") node.args[4] = graph::Arg{c10::IValue(0.0)};
  }
  return graph;
}

TEST(ParallelFindPlan, RealArchitecturesMatchUnshardedModel) {
  for (const std::string name : {"gpt", "gpt2", "llama", "bert", "t5", "vit", "mlp"}) {
    SCOPED_TRACE(name);
    const graph::Pt2Archive file(archive(name + ".pt2"));
    const auto tensors = read_tensors(archive(name + ".safetensors"));
    std::vector<c10::IValue> inputs;
    for (std::size_t i = 0; i < file.graph().inputs.size(); ++i) {
      const auto it = tensors.find("r0.in." + std::to_string(i));
      inputs.push_back(it != tensors.end() ? c10::IValue(it->second) : *file.graph().inputs[i].constant);
    }
    const graph::Graph graph = without_dropout(file.graph());
    graph::GraphModule dense(graph, file.load(graph.slots));
    const Ran want = run(dense, inputs);
    const parallel::FoundPlan found = parallel::find_parallel_plan(graph, 2);
    if (name != "mlp") {  // all layers are read by the residual stream
      EXPECT_GE(found.pairs.size(), 2U);
    }
    on_mesh({2}, [&](const tensor::DeviceMesh& mesh) {
      graph::GraphModule module(graph, file.load(graph.slots));
      parallel::parallelize_module(module, mesh, found.plan);
      const Ran got = run(module, inputs);
      ASSERT_EQ(got.outputs.size(), want.outputs.size());
      for (std::size_t i = 0; i < want.outputs.size(); ++i)
        EXPECT_LT(difference(got.outputs[i], want.outputs[i]), 1e-5) << "output " << i;
      for (std::size_t i = 0; i < want.gradients.size(); ++i)
        EXPECT_LT(difference(got.gradients[i], want.gradients[i]),
                  1e-5 * std::max(1.0, want.gradients[i].abs().max().item<double>()))
            << module.named_parameters()[i].name;
    });
  }
}

}  // namespace
}  // namespace penstock::test
