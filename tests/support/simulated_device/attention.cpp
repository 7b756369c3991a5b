// Attention: CUDA's fused operators, computed by the fused operators of the CPU.
#include "attention.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>

#include <array>
#include <tuple>

namespace penstock::test::simulated {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// The choice of CUDA in short: flash attention for 16-bit types without mask, efficient attention for these
// and float32. Both draw dropout inside the kernel, which cannot be simulated.
std::int64_t attention_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const OptionalTensor& mask, double dropout, bool, std::optional<double>,
                              bool enable_gqa) {
  const at::Context& context = at::globalContext();
  const auto dtype = query.scalar_type();
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  const bool mask_needs_gradient = mask && mask->defined() && mask->requires_grad();
  const bool plain = dropout == 0 && !enable_gqa && !mask_needs_gradient && query.dim() == 4 &&
                     query.size(3) == value.size(3) && query.numel() > 0 && key.numel() > 0;
  auto choice = at::SDPBackend::math;
  if (plain && is_half && !mask && context.userEnabledFlashSDP()) {
    choice = at::SDPBackend::flash_attention;
  } else if (plain && (is_half || dtype == at::kFloat) && context.userEnabledMemEfficientSDP()) {
    choice = at::SDPBackend::efficient_attention;
  }
  return static_cast<std::int64_t>(choice);
}

void check_dropout(double dropout) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0, "fused attention on a simulated device has no dropout");
}

// In place of the state of the random generator, which only dropout uses.
at::Tensor no_random_state(const at::Tensor& query) {
  return at::empty({0}, query.options().dtype(at::kLong));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor,
           at::Tensor>
flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout,
                bool is_causal, bool, std::optional<double> scale) {
  check_dropout(dropout);
  auto [output, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0, is_causal, {}, scale);
  return {output,
          logsumexp,
          at::Tensor(),
          at::Tensor(),
          query.sym_size(2),
          key.sym_size(2),
          no_random_state(query),
          no_random_state(query),
          at::empty({0}, query.options())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& output, const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&, c10::SymInt,
    c10::SymInt, double dropout, bool is_causal, const at::Tensor&, const at::Tensor&,
    std::optional<double> scale) {
  check_dropout(dropout);
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, query, key, value, output,
                                                                  logsumexp, 0, is_causal, {}, scale);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const OptionalTensor& bias, bool,
    double dropout, bool is_causal, std::optional<double> scale) {
  check_dropout(dropout);
  auto [output, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0, is_causal, bias, scale);
  return {output, logsumexp, no_random_state(query), no_random_state(query)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, const at::Tensor& output, const at::Tensor& logsumexp, const at::Tensor&,
    const at::Tensor&, double dropout, std::array<bool, 4>, bool is_causal, std::optional<double> scale) {
  if (!gradient.defined()) return {};
  check_dropout(dropout);
  const OptionalTensor mask = bias.defined() ? OptionalTensor(bias) : std::nullopt;
  auto [query_gradient, key_gradient, value_gradient] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, query, key, value, output, logsumexp,
                                                               0, is_causal, mask, scale);
  return {query_gradient, key_gradient, value_gradient, at::Tensor()};
}

}  // namespace

void add_attention_kernels(torch::Library& aten) {
  aten.impl("_fused_sdp_choice", attention_choice);
  // `scaled_dot_product_attention` does not ask the dispatcher.
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(attention_choice);
  aten.impl("_scaled_dot_product_flash_attention", flash_attention);
  aten.impl("_scaled_dot_product_flash_attention_backward", flash_attention_backward);
  aten.impl("_scaled_dot_product_efficient_attention", efficient_attention);
  aten.impl("_scaled_dot_product_efficient_attention_backward", efficient_attention_backward);
}

}  // namespace penstock::test::simulated
