// Scaled dot-product attention, sharded by batch or heads: the fused operators of the CPU and of CUDA. The
// unfused implementation consists of matrix products and softmax, which have their own rules.
//
// Operators of CUDA draw dropout inside the kernel, by local index. Ranks whose generators have the same
// state draw the same mask for each of their shards, and recomputation repeats it.
#include "tensor/rules/rules.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace penstock::tensor {
namespace {

bool is_mask(std::string_view name) {
  return name == "attn_mask" || name == "attn_bias";
}

//! Arguments and results that belong to no batch row or head: the state of the generator, and lengths of
//! sequences, which are undefined for dense tensors.
bool is_global(std::string_view name) {
  constexpr std::array names{"philox_seed", "philox_offset", "rng_state", "unused", "cum_seq_q", "cum_seq_k"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool returns_debug_mask(const OpCall& call) {
  const auto& arguments = call.op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "return_debug_mask") return call.arg(i).toBool();
  }
  return false;
}

//! The placement of a result if the inputs are sharded along dim d, and the mask along d or not at all.
AxisPlacement result_placement(const OpCall& call, std::size_t result, std::int64_t d, bool mask_sharded) {
  const std::string& name = call.op.schema().returns()[result].name();
  if (is_global(name)) return tensor::Replicate();
  if (name == "debug_attn_mask" && !returns_debug_mask(call)) return tensor::Replicate();
  // The last result of this operator is the gradient of the mask: ranks share a mask without the dim.
  const bool mask_gradient =
      call.op.schema().name() == "aten::_scaled_dot_product_efficient_attention_backward" && result == 3;
  if (mask_gradient && !mask_sharded) return Partial();
  return Shard(d);
}

void by_batch_or_heads(const OpCall& call, int axis, Options& options) {
  const auto& arguments = call.op.schema().arguments();
  const auto name_of = [&](std::size_t i) -> std::string_view {
    return arguments[call.tensors[i].arg].name();
  };
  for (const std::int64_t d : {std::int64_t{0}, std::int64_t{1}}) {
    bool used = false;
    std::int64_t size = -1;
    bool legal = true;
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
      if (is_mask(name_of(i)) || is_global(name_of(i))) continue;
      used = used || call.at(i, axis).is_shard(d);
      const std::int64_t count = call.sizes(i)[static_cast<std::size_t>(d)];
      // Grouped-query attention: each shard needs complete groups.
      if (size >= 0 && count != size)
        legal = legal && count % call.ranks(axis) == 0 && size % call.ranks(axis) == 0;
      size = count;
    }
    // libtorch's kernel divides by the number of batches and heads, so shards must not be empty.
    const std::int64_t shards = call.shards_if_sharded(0, d, axis);
    legal = legal && chunk(call.sizes(0)[static_cast<std::size_t>(d)], shards, shards - 1).size > 0;
    if (!used || !legal) continue;
    Option option = call.option();
    bool mask_sharded = false;
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
      if (is_global(name_of(i))) continue;
      const bool mask = is_mask(name_of(i));
      if (mask && (call.dims(i) < 4 || call.sizes(i)[static_cast<std::size_t>(d)] == 1)) continue;
      option.in[i] = Shard(d);
      mask_sharded = mask_sharded || mask;
    }
    for (std::size_t result = 0; result < option.out.size(); ++result)
      option.out[result] = result_placement(call, result, d, mask_sharded);
    options.push_back(option);
  }
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  for (const char* kind :
       {"flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"}) {
    const std::string name = std::string("_scaled_dot_product_") + kind;
    table[name] = {.options = by_batch_or_heads};
    table[name + "_backward"] = {.options = by_batch_or_heads};
  }
}

}  // namespace penstock::tensor
