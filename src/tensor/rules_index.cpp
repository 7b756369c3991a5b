// Embedding, gather, scatter and indexing.
#include "tensor/rules.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace penstock {
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
  add(Shard(1), Replicate(), Shard(dims));
  add(Shard(0), Replicate(), Partial());
  for (std::int64_t d = 0; d < dims; ++d) {
    if (call.at(1, axis).is_shard(d)) add(Replicate(), Shard(d), Shard(d));
  }
}

//! With the rows of the table cut, a rank looks up what it has and leaves zeros for the rest.
void embed_parts(const OpCall& call, const OpPlan& plan) {
  bool rows_cut = false;
  for (const AxisPlacement& placement : plan.in[0]) rows_cut = rows_cut || placement.is_shard(0);
  if (!rows_cut) return call.op.callBoxed(call.stack);
  const at::Tensor weight = call.arg(0).toTensor(), indices = call.arg(1).toTensor();
  const Interval mine = interval_of(call.sizes(0)[0], 0, plan.in[0], *call.mesh);
  if (mine.size == 0) {
    std::vector<std::int64_t> sizes = indices.sizes().vec();
    sizes.push_back(weight.size(1));
    finish(call, weight.new_zeros(sizes));
    return;
  }
  const at::Tensor inside = indices.ge(mine.start) & indices.lt(mine.start + mine.size);
  const at::Tensor local = at::where(inside, indices - mine.start, at::zeros_like(indices));
  finish(call, at::embedding(weight, local) * inside.unsqueeze(-1).to(weight.scalar_type()));
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
  if (call.at(0, axis).is_shard(dims)) add(Shard(dims), Replicate(), Shard(1));
  if (call.at(0, axis) == AxisPlacement(Partial())) add(Partial(), Replicate(), Partial());
  for (std::int64_t d = 0; d < dims; ++d) {
    // Counting how often a word occurs needs all of them.
    const bool used = call.at(0, axis).is_shard(d) || call.at(1, axis).is_shard(d);
    if (used && !call.arg(4).toBool()) add(Shard(d), Shard(d), Partial());
  }
}

//! Tensors of one number of dims and of equal size there, all cut alike along a dim that is not `dim`.
void cut_beside(const OpCall& call, int axis, Options& options, std::int64_t dim) {
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
  cut_beside(call, axis, options, dim);
  if (call.at(1, axis).is_shard(dim)) {
    Option option = call.option();
    option.in[1] = option.out[0] = Shard(dim);
    options.push_back(option);
  }
}

void scatter_options(const OpCall& call, int axis, Options& options) {
  cut_beside(call, axis, options, call.dim_arg(1, call.dims(0)));
}

//! The first tensor cut beside `dim`, the index whole; or the index cut.
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

// index(self, indices?[]): one index tensor can be followed, more need all of it.
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

void whole_only(const OpCall& /*call*/, int /*axis*/, Options& /*options*/) {}

}  // namespace

void add_index_rules(RuleTable& table) {
  table["embedding"] = {.options = embedding_options, .execute = embed_parts};
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
    table[name] = {.options = whole_only};
  }
}

}  // namespace penstock
