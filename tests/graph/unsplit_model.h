// An unsplit archive, run once, and the checks that its stages give the same results.
#pragma once

#include "support/same_bits.h"
#include "support/stage_runner.h"
#include "support/tensor_file.h"

#include <penstock/graph/pt2.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <set>

namespace penstock::test {

struct UnsplitModel {
  explicit UnsplitModel(const std::string& path) : file(path + ".pt2") {
    at::set_num_threads(1);
    const auto expected = read_tensors(path + ".safetensors");
    const graph::Graph& graph = file.graph();
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      const auto it = expected.find("r0.in." + std::to_string(i));
      inputs.push_back(it != expected.end() ? c10::IValue(it->second) : *graph.inputs[i].constant);
    }
    const std::vector<at::Tensor> loaded = file.load(graph.slots);
    for (std::size_t i = 0; i < loaded.size(); ++i)
      tensors[graph.slots[i].names[0]] = loaded[i].detach().clone();
    graph::GraphModule module(graph, loaded);
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

  graph::Pt2Archive file;
  std::vector<c10::IValue> inputs, outputs;
  std::vector<at::Tensor> seeds;
  std::map<std::string, at::Tensor> tensors, gradients, buffers;
};

inline void expect_equal(const UnsplitModel& unsplit, const graph::SplitPositions& positions, bool exact) {
  const graph::SplitGraph split = split_graph(unsplit.file.graph(), positions);
  ASSERT_EQ(split.stages.size(), positions.size() + 1);
  StageRunner runner(split, unsplit.tensors);
  at::manual_seed(0);
  const auto outputs = runner.forward(unsplit.inputs);
  ASSERT_EQ(outputs.size(), unsplit.outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].isTensor()) continue;
    const at::Tensor &got = outputs[i].toTensor(), &wanted = unsplit.outputs[i].toTensor();
    // A stage receives contiguous tensors, for which kernels may sum in another order than for views.
    EXPECT_TRUE(exact || !wanted.is_floating_point() ? same_bits(got, wanted)
                                                     : at::allclose(got, wanted, 1e-5, 1e-6))
        << "output " << i << " differs by " << (got - wanted).abs().max().item<double>();
  }
  runner.backward(unsplit.seeds);
  const auto gradients = runner.gradients();
  std::set<std::string> tied;
  for (const graph::SharedSlot& slot : split.shared) tied.insert(slot.names[0]);
  ASSERT_EQ(gradients.size(), unsplit.gradients.size());
  for (const auto& [name, gradient] : unsplit.gradients) {
    if (exact && !tied.contains(name)) {
      EXPECT_TRUE(same_bits(gradients.at(name), gradient)) << name;
    } else {  // sums over stages have another order
      EXPECT_TRUE(at::allclose(gradients.at(name), gradient, 1e-4, 1e-5))
          << name << " differs by " << (gradients.at(name) - gradient).abs().max().item<double>();
    }
  }
  for (const graph::GraphModule& module : runner.modules) {
    for (const auto& [name, buffer] : module.named_buffers())
      EXPECT_TRUE(same_bits(buffer, unsplit.buffers.at(name))) << name;
  }
}

//! The parameters of the stages partition those of the model; those in several stages are listed.
inline void expect_partition(const graph::Graph& graph, const graph::SplitGraph& split) {
  std::map<std::string, int> holders;
  for (const graph::StageGraph& stage : split.stages) {
    for (const graph::Slot& slot : stage.graph.slots) ++holders[slot.names[0]];
  }
  for (const graph::SharedSlot& slot : split.shared)
    EXPECT_EQ(holders.at(slot.names[0]), static_cast<int>(slot.stages.size()));
  std::size_t shared = 0;
  for (const auto& [name, count] : holders) shared += count > 1 ? 1 : 0;
  EXPECT_EQ(shared, split.shared.size());
  std::set<std::int32_t> read;
  for (const graph::Node& node : graph.nodes)
    for_each_read(node, [&](graph::ValueId id) { read.insert(id.value); });
  for (const graph::Slot& slot : graph.slots) {
    EXPECT_TRUE(!read.contains(slot.value.value) || holders.contains(slot.names[0])) << slot.names[0];
  }
}

}  // namespace penstock::test
