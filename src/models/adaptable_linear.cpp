// Adds a low-rank term to a linear layer.
#include <penstock/base/error.h>
#include <penstock/models/adaptable_linear.h>

#include <torch/torch.h>

namespace penstock::models {

void AdaptableLinearImpl::add_adapter(std::int64_t rank, double scale, double dropout) {
  if (!lora_A.is_empty()) throw UsageError("the layer has an adapter already");
  const auto layer = [&](std::int64_t from, std::int64_t to) {
    torch::nn::Linear made(torch::nn::LinearOptions(from, to).bias(false));
    made->to(weight.device(), weight.scalar_type());
    return made;
  };
  lora_A = register_module("lora_A", layer(options.in_features(), rank));
  lora_B = register_module("lora_B", layer(rank, options.out_features()));
  if (dropout > 0) dropout_ = register_module("lora_dropout", torch::nn::Dropout(dropout));
  scale_ = scale;
  const torch::NoGradGuard no_grad;
  lora_B->weight.zero_();
}

at::Tensor AdaptableLinearImpl::forward(const at::Tensor& x) {
  const at::Tensor result = torch::nn::LinearImpl::forward(x);
  if (lora_A.is_empty()) return result;
  return result + lora_B(lora_A(dropout_.is_empty() ? x : dropout_(x))) * scale_;
}

}  // namespace penstock::models
