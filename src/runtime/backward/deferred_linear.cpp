// The linear layer that queues its weight gradients.
#include "runtime/backward/backward_work.h"

#include <penstock/runtime/deferred_linear.h>

#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace penstock::runtime {
namespace {

using at::Tensor;
using torch::autograd::SavedVariable;

constexpr std::size_t kInput = 0, kWeight = 1, kBias = 2;  // the arguments

Tensor rows(const Tensor& tensor) {
  return tensor.dim() == 2 ? tensor : tensor.reshape({-1, tensor.size(-1)});
}

class DeferredLinearNode final : public SplitNode {
 public:
  DeferredLinearNode(const Tensor& input, const Tensor& weight, const Tensor& bias)
      : SplitNode(torch::autograd::collect_next_edges(input, weight, bias)),
        input_(input, /*is_output=*/false),
        weight_(weight, /*is_output=*/false) {}

  std::string name() const override { return "DeferredLinearBackward"; }

  void release_variables() override {
    input_.reset_data();
    weight_.reset_data();
  }

 protected:
  variable_list apply(variable_list&& grads) override {
    variable_list result(3);
    if (!grads[0].defined()) return result;
    const Tensor grad = rows(grads[0]);
    const Tensor input = input_.unpack();
    if (task_should_compute_output(kInput)) {
      result[kInput] = grad.mm(weight_.unpack().conj()).view(input.sizes());
    }
    const auto give = [&](std::size_t argument, std::function<Tensor()> compute) {
      if (!should_compute_output(argument)) return;
      if (queue != nullptr) {
        queue->tasks.push_back({next_edge(argument), alone, std::move(compute)});
      } else if (task_should_compute_output(argument)) {
        result[argument] = compute();
      }
    };
    give(kWeight, [grad, input = rows(input.detach())] { return grad.t().mm(input.conj()); });
    give(kBias, [grad] { return grad.sum(0); });
    return result;
  }

 private:
  SavedVariable input_;
  SavedVariable weight_;
};

}  // namespace

Tensor deferred_linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  const bool differentiable =
      at::GradMode::is_enabled() &&
      (input.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad()));
  if (!differentiable) return at::linear(input, weight, bias);
  Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    output = at::linear(input, weight, bias);
  }
  torch::autograd::create_gradient_edge(output, c10::make_intrusive<DeferredLinearNode>(input, weight, bias));
  return output;
}

}  // namespace penstock::runtime
