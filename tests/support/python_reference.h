// Compares an imported model with Python's results on this machine: outputs, gradients and buffers, bitwise.
// Results from another machine would differ in the last bits, because the order of sums depends on the vector
// width.
#pragma once

#include "support/python.h"
#include "support/same_bits.h"
#include "support/tensor_file.h"

#include <penstock/graph/graph_module.h>
#include <penstock/graph/pt2.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

namespace penstock::test {

//! The tensors of one run for the inputs of the graph; constant inputs are passed unchanged.
inline std::vector<c10::IValue> inputs_of(const graph::Graph& graph,
                                          const std::map<std::string, at::Tensor>& tensors,
                                          const std::string& run) {
  std::vector<c10::IValue> leaves;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto it = tensors.find(run + "in." + std::to_string(i));
    leaves.push_back(it != tensors.end() ? c10::IValue(it->second) : *graph.inputs[i].constant);
  }
  return leaves;
}

//! The folder with the results that python_reference.py writes for our archives, once per program. Empty if
//! PENSTOCK_PYTHON names no Python with torch 2.13.
inline const std::string& results_of_python() {
  static const TempDir folder;
  static const std::string path = [] {
    const std::string python = python_with_torch();
    if (python.empty()) return python;
    const Outcome made =
        run_program({python, "-B", "-W", "ignore", PENSTOCK_SOURCE_DIR "/tests/graph/python_reference.py",
                     archive(""), folder.path()});
    if (made.code != 0) throw std::runtime_error("python_reference.py failed: " + made.err);
    return folder.path();
  }();
  return path;
}

//! `path` names an archive and its inputs, without extension; `results` is the folder with Python's results.
//! With `exact`, gradients are compared bitwise, too. Those of large models are sums whose order torch.export
//! changes: its own module differs from eager in the last bits as well.
inline void expect_as_python(const std::string& path, const std::string& results, bool exact = true) {
  SCOPED_TRACE(path);
  at::set_num_threads(1);
  const graph::Pt2Archive file(path + ".pt2");
  const auto given = read_tensors(path + ".safetensors");
  const auto expected = read_tensors(results + path.substr(path.rfind('/')) + ".safetensors");
  graph::GraphModule module(file.graph(), file.load(file.graph().slots));
  const graph::Graph& graph = module.graph();
  int runs = 0, gradients = 0;
  for (; given.contains("r" + std::to_string(runs) + ".in.0"); ++runs) {
    const std::string run = "r" + std::to_string(runs) + ".";
    for (const auto& [parameter, tensor] : module.named_parameters()) tensor.mutable_grad() = at::Tensor();
    at::manual_seed(static_cast<std::uint64_t>(runs));
    std::vector<c10::IValue> leaves = inputs_of(graph, given, run);
    check_inputs(graph, leaves);
    const std::vector<c10::IValue> outputs = module.run(std::move(leaves));
    const std::vector<std::string> paths = graph.output_paths();
    std::vector<at::Tensor> roots, seeds;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].isTensor()) continue;
      EXPECT_TRUE(same_bits(outputs[i].toTensor(), expected.at(run + "out." + paths[i]))) << run << paths[i];
      const auto seed = given.find(run + "seed." + paths[i]);
      EXPECT_EQ(seed != given.end(), outputs[i].toTensor().requires_grad()) << run << paths[i];
      if (seed == given.end()) continue;
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
