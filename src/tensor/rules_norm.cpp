// Layer norm and RMS norm: cut along any dim that is not normalised; the gradients of weight and bias are then partial.
#include "tensor/rules.h"

namespace penstock {
namespace {

//! The tensors that have the input's leading dims are cut, parameters are whole.
void leading(const Call& call, int axis, Options& options, std::size_t shape_arg, bool backward) {
  const auto normalised = static_cast<std::int64_t>(call.arg(shape_arg).toIntVector().size());
  const std::int64_t free = call.dims(0) - normalised;
  for (std::int64_t d = 0; d < free; ++d) {
    bool used = false;
    for (std::size_t i = 0; i < call.tensors.size(); ++i) used = used || call.at(i, axis).is_shard(d);
    if (!used) continue;
    Option option = call.option();
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
      if (call.dims(i) == call.dims(0)) option.in[i] = Shard(d);
    }
    for (std::size_t i = 0; i < option.out.size(); ++i) {
      option.out[i] = backward && i > 0 ? Placement(Partial()) : Placement(Shard(d));
    }
    options.push_back(option);
  }
}

//! A weight that has as many dims as the input would be mistaken for it; then nothing is cut.
bool clear(const Call& call, std::size_t shape_arg) {
  return static_cast<std::int64_t>(call.arg(shape_arg).toIntVector().size()) < call.dims(0);
}

void forward_options(const Call& call, int axis, Options& options) {
  if (clear(call, 1)) leading(call, axis, options, 1, false);
}
void backward_options(const Call& call, int axis, Options& options) {
  if (clear(call, 2)) leading(call, axis, options, 2, true);
}

}  // namespace

void add_norm_rules(RuleTable& table) {
  table["native_layer_norm"] = table["_fused_rms_norm"] = {.options = forward_options, .grants_wish = true};
  table["native_layer_norm_backward"] = table["_fused_rms_norm_backward"] = {.options = backward_options};
}

}  // namespace penstock
