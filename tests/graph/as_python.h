// An imported model against Python's eager run: outputs, gradients and buffers, bit for bit.
#pragma once

#include "tensor_file.h"

#include <penstock/graph/module.h>
#include <penstock/graph/pt2.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

namespace penstock::test {

//! The tensors of one run, in place of the graph's inputs; baked inputs are passed as they are.
inline std::vector<c10::IValue> inputs_of(const Graph& graph,
                                          const std::map<std::string, at::Tensor>& tensors,
                                          const std::string& run) {
  std::vector<c10::IValue> leaves;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto it = tensors.find(run + "in." + std::to_string(i));
    leaves.push_back(it != tensors.end() ? c10::IValue(it->second) : *graph.inputs[i].baked);
  }
  return leaves;
}

//! `path` without its ending names an archive and the tensors that belong to it. Gradients of large models
//! are sums whose order export changes: there Python's own exported module differs from eager in the last
//! bits too.
inline void expect_as_python(const std::string& path, bool exact = true) {
  SCOPED_TRACE(path);
  at::set_num_threads(1);
  const Pt2Archive file(path + ".pt2");
  const auto expected = read_tensors(path + ".safetensors");
  const GraphModule module(file.graph(), file.load(file.graph().slots));
  const Graph& graph = module.graph();
  int runs = 0, gradients = 0;
  for (; expected.contains("r" + std::to_string(runs) + ".in.0"); ++runs) {
    const std::string run = "r" + std::to_string(runs) + ".";
    for (const auto& [parameter, tensor] : module.named_parameters()) tensor.mutable_grad() = at::Tensor();
    at::manual_seed(static_cast<std::uint64_t>(runs));
    std::vector<c10::IValue> leaves = inputs_of(graph, expected, run);
    check_inputs(graph, leaves);
    const std::vector<c10::IValue> outputs = module.run(std::move(leaves));
    const std::vector<std::string> paths = graph.output_paths();
    std::vector<at::Tensor> roots, seeds;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].isTensor()) continue;
      EXPECT_TRUE(same_bits(outputs[i].toTensor(), expected.at(run + "out." + paths[i]))) << run << paths[i];
      const auto seed = expected.find(run + "seed." + paths[i]);
      EXPECT_EQ(seed != expected.end(), outputs[i].toTensor().requires_grad()) << run << paths[i];
      if (seed == expected.end()) continue;
      roots.push_back(outputs[i].toTensor());
      seeds.push_back(seed->second);
    }
    torch::autograd::backward(roots, seeds);
    for (std::size_t i = 0; i < graph.slots.size(); ++i) {
      for (const std::string& parameter : graph.slots[i].names) {
        const auto grad = expected.find(run + "grad." + parameter);
        if (grad == expected.end()) continue;
        ++gradients;
        ASSERT_TRUE(module.tensors()[i].grad().defined()) << parameter;
        const at::Tensor& got = module.tensors()[i].grad();
        EXPECT_TRUE(exact ? same_bits(got, grad->second) : at::allclose(got, grad->second, 1e-4, 1e-6))
            << run << parameter;
      }
    }
  }
  EXPECT_GT(runs, 0);
  EXPECT_GT(gradients, 0);
  for (const auto& [buffer, tensor] : module.named_buffers()) {
    EXPECT_TRUE(same_bits(tensor, expected.at("buffer." + buffer))) << buffer;
  }
}

}  // namespace penstock::test
