// Scaled dot-product attention on CPU, sharded by batch or heads. libtorch's other implementations decompose
// into matrix products and softmax, which have their own rules.
#include "tensor/rules/rules.h"

namespace penstock::tensor {
namespace {

void by_batch_or_heads(const OpCall& call, int axis, Options& options) {
  const auto& arguments = call.op.schema().arguments();
  for (const std::int64_t d : {std::int64_t{0}, std::int64_t{1}}) {
    bool used = false;
    std::int64_t size = -1;
    bool legal = true;
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
      if (arguments[call.tensors[i].arg].name() == "attn_mask") continue;
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
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
      const bool mask = arguments[call.tensors[i].arg].name() == "attn_mask";
      const bool replicated = mask && (call.dims(i) < 4 || call.sizes(i)[static_cast<std::size_t>(d)] == 1);
      if (!replicated) option.in[i] = Shard(d);
    }
    for (AxisPlacement& placement : option.out) placement = Shard(d);
    options.push_back(option);
  }
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table["_scaled_dot_product_flash_attention_for_cpu"] = {.options = by_batch_or_heads};
  table["_scaled_dot_product_flash_attention_for_cpu_backward"] = {.options = by_batch_or_heads};
}

}  // namespace penstock::tensor
