// Embedding, gather, scatter and indexing.
#include "tensor/rules/embedding.h"
#include "tensor/rules/rules.h"

#include <algorithm>

namespace penstock::tensor {
namespace {

// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
void embedding_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dims = call.dims(1);
  const auto add = [&](const AxisPlacement& weight, const AxisPlacement& indices, const AxisPlacement& out) {
    Option option = call.option();
    option.in = {weight, indices};
    option.out[0] = out;
    options.push_back(option);
  };
  add(Shard(1), tensor::Replicate(), Shard(dims));
  add(Shard(0), tensor::Replicate(), Partial());
  for (std::int64_t d = 0; d < dims; ++d) {
    if (call.at(1, axis).is_shard(d)) add(tensor::Replicate(), Shard(d), Shard(d));
  }
}

bool shards_rows(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(), [](const auto& p) { return p.is_shard(0); });
}

void embed_shards(const OpCall& call, const OpPlan& plan) {
  if (!shards_rows(plan.in[0])) return call.op.callBoxed(call.stack);
  const at::Tensor rows = call.arg(0).toTensor(), indices = call.arg(1).toTensor();
  finish(call, embed_rows(rows, indices, interval_of(call.sizes(0)[0], 0, plan.in[0], *call.mesh)));
}

//! Handles tables sharded by rows, whose lookup has its own derivative.
bool replace_embedding(const OpCall& call) {
  const DTensorImpl *weight = call.tensors[0].impl, *indices = call.tensors[1].impl;
  if (!weight || !indices || !shards_rows(weight->placements())) return false;
  const bool sparse = call.arg(4).toBool(), by_frequency = call.arg(3).toBool();
  const auto is_sharded = [](const auto& p) { return p.is_shard(); };
  const Placements& at = indices->placements();
  // Frequencies must be counted over all indices.
  if (sparse || (by_frequency && std::any_of(at.begin(), at.end(), is_sharded))) return false;
  finish(call, look_up(call.tensors[0].tensor, call.tensors[1].tensor, call.arg(2).toInt(), by_frequency));
  return true;
}

// embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq) -> grad of weight
void embedding_backward_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dims = call.dims(1);
  const auto add = [&](const AxisPlacement& grad, const AxisPlacement& indices, const AxisPlacement& out) {
    Option option = call.option();
    option.in = {grad, indices};
    option.out[0] = out;
    options.push_back(option);
  };
  if (call.at(0, axis).is_shard(dims)) add(Shard(dims), tensor::Replicate(), Shard(1));
  if (call.at(0, axis) == AxisPlacement(Partial())) add(Partial(), tensor::Replicate(), Partial());
  for (std::int64_t d = 0; d < dims; ++d) {
    // Frequencies must be counted over all indices.
    const bool used = call.at(0, axis).is_shard(d) || call.at(1, axis).is_shard(d);
    if (used && !call.arg(4).toBool()) add(Shard(d), Shard(d), Partial());
  }
}

//! All tensors have the same number of dims and are sharded along the same dim of equal size other than
//! `dim`.
void shard_other_dims(const OpCall& call, int axis, Options& options, std::int64_t dim) {
  for (std::int64_t d = 0; d < call.dims(0); ++d) {
    bool used = false, equal = d != dim;
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
      if (call.dims(i) != call.dims(0)) return;
      used = used || call.at(i, axis).is_shard(d);
      equal =
          equal && call.sizes(i)[static_cast<std::size_t>(d)] == call.sizes(0)[static_cast<std::size_t>(d)];
    }
    if (!used || !equal) continue;
    Option option = call.option();
    for (AxisPlacement& placement : option.in) placement = Shard(d);
    option.out[0] = Shard(d);
    options.push_back(option);
  }
}

void gather_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dim = call.dim_arg(1, call.dims(0));
  shard_other_dims(call, axis, options, dim);
  if (call.at(1, axis).is_shard(dim)) {
    Option option = call.option();
    option.in[1] = option.out[0] = Shard(dim);
    options.push_back(option);
  }
}

void scatter_options(const OpCall& call, int axis, Options& options) {
  shard_other_dims(call, axis, options, call.dim_arg(1, call.dims(0)));
}

//! The first tensor is sharded along another dim and the index replicated; or the index is sharded.
void index_select_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dim = call.dim_arg(1, call.dims(0));
  map_dims(call, axis, options, true, [&](std::int64_t d) { return d == dim ? -1 : d; });
  if (call.at(1, axis).is_shard(0)) {
    Option option = call.option();
    option.in[1] = Shard(0);
    option.out[0] = Shard(dim);
    options.push_back(option);
  }
}

// index(self, indices?[]): sharding is supported for a single index tensor.
void index_options(const OpCall& call, int axis, Options& options) {
  if (call.tensors.size() != 2 || call.tensors[1].tensor.scalar_type() != at::kLong) return;
  const std::int64_t at = call.tensors[1].item, wide = call.dims(1);
  map_dims(call, axis, options, true, [&](std::int64_t d) {
    return d == at ? -1 : d < at ? d : d - 1 + wide;
  });
  for (std::int64_t d = 0; d < wide; ++d) {
    if (!call.at(1, axis).is_shard(d)) continue;
    Option option = call.option();
    option.in[1] = Shard(d);
    option.out[0] = Shard(at + d);
    options.push_back(option);
  }
}

// index_add_(self, dim, index, source, alpha)
void index_add_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dim = call.dim_arg(1, call.dims(0));
  for (std::int64_t d = 0; d < call.dims(0); ++d) {
    if (d == dim || !(call.at(0, axis).is_shard(d) || call.at(2, axis).is_shard(d))) continue;
    Option option = call.option();
    option.in[0] = option.in[2] = option.out[0] = Shard(d);
    options.push_back(option);
  }
}

void replicated_options(const OpCall& /*call*/, int /*axis*/, Options& /*options*/) {}

}  // namespace

void add_index_rules(RuleTable& table) {
  table["embedding"] = {.options = embedding_options, .execute = embed_shards, .replace = replace_embedding};
  table["embedding_dense_backward"] = {.options = embedding_backward_options};
  table["gather"] = {.options = gather_options};
  for (const char* name :
       {"scatter.src", "scatter.value", "scatter_add", "scatter_.src", "scatter_.value", "scatter_add_"}) {
    table[name] = {.options = scatter_options};
  }
  table["index_select"] = {.options = index_select_options};
  table["index.Tensor"] = {.options = index_options};
  table["index_add"] = table["index_add_"] = {.options = index_add_options};
  for (const char* name :
       {"index_put", "index_put_", "_index_put_impl_", "index_copy", "index_copy_", "bincount"}) {
    table[name] = {.options = replicated_options};
  }
}

}  // namespace penstock::tensor
