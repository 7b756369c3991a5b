// Layer norm and RMS norm, sharded along any dim that is not normalized. The gradients of weight and bias are
// then partial.
#include "tensor/rules/rules.h"

#include <ATen/TensorOperators.h>

#include <limits>

namespace penstock::tensor {
namespace {

//! Tensors with the input's leading dims are sharded, parameters are replicated.
void leading(const OpCall& call, int axis, Options& options, std::size_t shape_arg, bool backward) {
  const auto normalized = static_cast<std::int64_t>(call.arg(shape_arg).toIntVector().size());
  const std::int64_t free = call.dims(0) - normalized;
  for (std::int64_t d = 0; d < free; ++d) {
    bool used = false;
    for (std::size_t i = 0; i < call.tensors.size(); ++i) used = used || call.at(i, axis).is_shard(d);
    if (!used) continue;
    Option option = call.option();
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
      if (call.dims(i) == call.dims(0)) option.in[i] = Shard(d);
    }
    for (std::size_t i = 0; i < option.out.size(); ++i) {
      option.out[i] = backward && i > 0 ? AxisPlacement(Partial()) : AxisPlacement(Shard(d));
    }
    options.push_back(option);
  }
}

//! Whether weight and input can be told apart by their number of dims; otherwise nothing is sharded.
bool clear(const OpCall& call, std::size_t shape_arg) {
  return static_cast<std::int64_t>(call.arg(shape_arg).toIntVector().size()) < call.dims(0);
}

void forward_options(const OpCall& call, int axis, Options& options) {
  if (clear(call, 1)) leading(call, axis, options, 1, false);
}
void backward_options(const OpCall& call, int axis, Options& options) {
  if (clear(call, 2)) leading(call, axis, options, 2, true);
}

//! rms_norm(input, normalized_shape, weight?, eps?): libtorch's fused kernel has no backward pass on CPU.
bool replace_rms_norm(const OpCall& call) {
  const at::Tensor x = call.arg(0).toTensor();
  std::vector<std::int64_t> dims;
  const auto normalized = static_cast<std::int64_t>(call.arg(1).toIntVector().size());
  for (std::int64_t d = x.dim() - normalized; d < x.dim(); ++d) dims.push_back(d);
  const double eps = !call.arg(3).isNone()            ? call.arg(3).toDouble()
                     : x.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                      : std::numeric_limits<float>::epsilon();
  at::Tensor y = x * (x.pow(2).mean(dims, true) + eps).rsqrt();
  if (!call.arg(2).isNone() && call.arg(2).toTensor().defined()) y = y * call.arg(2).toTensor();
  finish(call, y);
  return true;
}

//! The input may be sharded along dims that are not normalized. A partial input must be reduced.
void rms_options(const OpCall& call, int axis, Options& options) {
  const auto normalized = static_cast<std::int64_t>(call.arg(1).toIntVector().size());
  map_dims(call, axis, options, false,
           [&](std::int64_t d) { return d < call.dims(0) - normalized ? d : -1; });
}

}  // namespace

void add_norm_rules(RuleTable& table) {
  table["rms_norm"] = {
      .options = rms_options, .replace = replace_rms_norm, .composite = true, .applies_input_request = true};
  table["native_layer_norm"] = {.options = forward_options, .applies_input_request = true};
  table["native_layer_norm_backward"] = {.options = backward_options};
}

}  // namespace penstock::tensor
