// Oracle for the split backward: runs the same model once through autograd and once through our backward;
// everything must be bitwise equal.
#pragma once

#include "runtime/backward/backward.h"
#include "support/models/functional_models.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace penstock::test {

//! Builds the same model each time it is called.
using Build = std::function<FunctionalModel()>;

enum class BackwardKind { Plain, Full, Split };

struct Gradients {
  Tensors inputs;
  Tensors params;
};

inline Tensors leaves(const Tensors& inputs) {
  Tensors result;
  for (const at::Tensor& input : inputs) {
    result.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad()) : input);
  }
  return result;
}

inline Tensors grads_for(const Tensors& outputs, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  Tensors grads;
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad()) {
      grads.push_back(at::randn(output.sizes(), generator, output.options().requires_grad(false)));
    } else {
      grads.emplace_back();
    }
  }
  return grads;
}

inline Tensors plain_backward(const Tensors& outputs, const Tensors& grads, const Tensors& inputs) {
  Tensors roots, seeds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !grads[i].defined()) continue;
    roots.push_back(outputs[i]);
    seeds.push_back(grads[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, seeds);
  Tensors result;
  for (const at::Tensor& input : inputs) result.push_back(input.defined() ? input.grad() : input);
  return result;
}

//! Runs the batches sequentially, accumulating gradients. Split: first every input backward, then the weight
//! backward passes in the order of the batches, as in schedules.
inline Gradients run(const Build& build, const std::vector<Tensors>& batches, BackwardKind backward_kind) {
  at::set_num_threads(1);  // the tensors are tiny: more threads would only slow it down
  const FunctionalModel model = build();
  Gradients result;
  std::vector<runtime::WeightWork> works;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    torch::manual_seed(1000 + i);
    const Tensors inputs = leaves(batches[i]);
    const Tensors outputs = model.forward(inputs);
    const Tensors grads = grads_for(outputs, i);
    Tensors input_grads;
    if (backward_kind == BackwardKind::Plain) {
      input_grads = plain_backward(outputs, grads, inputs);
    } else if (backward_kind == BackwardKind::Full) {
      input_grads = runtime::backward_full(outputs, grads, inputs);
    } else {
      runtime::InputBackward half = runtime::backward_input(outputs, grads, inputs);
      input_grads = std::move(half.input_grads);
      works.push_back(std::move(half.weights));
    }
    result.inputs.insert(result.inputs.end(), input_grads.begin(), input_grads.end());
  }
  if (backward_kind == BackwardKind::Split) {
    for (const at::Tensor& param : model.params)
      EXPECT_FALSE(param.grad().defined()) << "weights wait for their half";
  }
  for (runtime::WeightWork& work : works) work.run();
  for (const at::Tensor& param : model.params) result.params.push_back(param.grad());
  return result;
}

inline void expect_equal(const Tensors& got, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << what << " " << i;
    if (got[i].defined()) {
      EXPECT_TRUE(got[i].equal(expected[i]))
          << what << " " << i << ": largest difference " << (got[i] - expected[i]).abs().max().item<double>();
      EXPECT_EQ(got[i].strides(), expected[i].strides()) << what << " " << i;
    }
  }
}

inline void expect_same_as_plain(const Build& build, const std::vector<Tensors>& batches) {
  const Gradients plain = run(build, batches, BackwardKind::Plain);
  for (const BackwardKind backward_kind : {BackwardKind::Full, BackwardKind::Split}) {
    SCOPED_TRACE(backward_kind == BackwardKind::Full ? "full" : "split");
    const Gradients ours = run(build, batches, backward_kind);
    expect_equal(ours.inputs, plain.inputs, "input gradient");
    expect_equal(ours.params, plain.params, "parameter gradient");
  }
}

//! `count` batches of the same shape.
inline std::vector<Tensors> batches_of(const std::function<Tensors()>& make, int count) {
  std::vector<Tensors> batches;
  for (int i = 0; i < count; ++i) batches.push_back(make());
  return batches;
}

inline at::Tensor input(at::IntArrayRef shape) {
  return torch::randn(shape, torch::requires_grad());
}

}  // namespace penstock::test
