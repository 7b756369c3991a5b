// A linear layer to which a low-rank adapter (LoRA) can be added. Needs torch::nn, like gpt.h.
#pragma once

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace penstock::models {

//! Computes W x + b, and with an adapter W x + b + scale * B(A(dropout(x))).
class AdaptableLinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;

  //! Adds the submodules `lora_A`, which maps the inputs to `rank` features, and `lora_B`, which maps these
  //! to the outputs, both without bias. The weight of `lora_B` is 0, so the result does not change yet.
  void add_adapter(std::int64_t rank, double scale, double dropout);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear lora_A{nullptr}, lora_B{nullptr};  //!< empty without an adapter

 private:
  torch::nn::Dropout dropout_{nullptr};
  double scale_ = 1;
};
TORCH_MODULE(AdaptableLinear);

}  // namespace penstock::models
