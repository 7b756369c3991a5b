// Views and operators that move elements without computing: each dim of the result comes from dims of the
// input.
#include "base/text.h"
#include "tensor/rules/rules.h"

#include <penstock/base/error.h>

#include <ATen/core/Tensor.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace penstock::tensor {
namespace {

std::int64_t product(c10::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

// --- one dim to one dim

void transposed(const OpCall& call, int axis, Options& options) {
  const std::int64_t dims = call.dims(0);
  const bool t = call.count() == 1;
  const std::int64_t a = t ? 0 : call.dim_arg(1, dims), b = t ? 1 : call.dim_arg(2, dims);
  map_dims(call, axis, options, true, [&](std::int64_t d) {
    if (t && dims < 2) return d;
    return d == a ? b : d == b ? a : d;
  });
}

void permuted(const OpCall& call, int axis, Options& options) {
  const auto order = call.arg(1).toIntVector();
  map_dims(call, axis, options, true, [&](std::int64_t d) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (c10::maybe_wrap_dim(order[i], call.dims(0)) == d) return static_cast<std::int64_t>(i);
    }
    return std::int64_t{-1};
  });
}

void unsqueezed(const OpCall& call, int axis, Options& options) {
  const std::int64_t at = call.dim_arg(1, call.dims(0) + 1);
  map_dims(call, axis, options, true, [&](std::int64_t d) { return d < at ? d : d + 1; });
}

//! The dims of global size 1 that squeeze removes. A shard with one row has a local dim of size 1 that must
//! stay.
std::vector<std::int64_t> squeezed_dims(const OpCall& call) {
  const std::int64_t dims = call.dims(0);
  std::vector<std::int64_t> asked;
  if (call.count() == 1) {
    asked.resize(static_cast<std::size_t>(dims));
    std::iota(asked.begin(), asked.end(), 0);
  } else if (call.arg(1).isInt()) {
    asked = {call.dim_arg(1, dims)};
  } else {
    for (const std::int64_t d : call.arg(1).toIntVector()) asked.push_back(c10::maybe_wrap_dim(d, dims));
  }
  std::erase_if(asked,
                [&](std::int64_t d) { return d >= dims || call.sizes(0)[static_cast<std::size_t>(d)] != 1; });
  std::sort(asked.begin(), asked.end());
  asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
  return asked;
}

void squeezed(const OpCall& call, int axis, Options& options) {
  const std::vector<std::int64_t> gone = squeezed_dims(call);
  map_dims(call, axis, options, true, [&](std::int64_t d) {
    if (std::binary_search(gone.begin(), gone.end(), d)) return std::int64_t{-1};
    return d - (std::lower_bound(gone.begin(), gone.end(), d) - gone.begin());
  });
}

void squeeze_shards(const OpCall& call, const OpPlan& /*plan*/) {
  const std::vector<std::int64_t> gone = squeezed_dims(call);
  const at::Tensor local = call.arg(0).toTensor();
  finish(call, local.squeeze(gone));
}

// --- complex numbers and signs: the local shard is the lazy conjugate, the distributed tensor has no
// conjugate bit

bool adds(const AxisPlacement& placement) {
  return placement.is_partial() &&
         (placement.reduce() == comm::ReduceOp::Sum || placement.reduce() == comm::ReduceOp::Avg);
}

void each_element(const OpCall& call, int axis, Options& options) {
  map_dims(call, axis, options, adds(call.at(0, axis)), [](std::int64_t d) { return d; });
}

//! view_as_complex removes the last dim.
void to_complex(const OpCall& call, int axis, Options& options) {
  const std::int64_t last = call.dims(0) - 1;
  map_dims(call, axis, options, adds(call.at(0, axis)), [&](std::int64_t d) { return d == last ? -1 : d; });
}

//! A lazy conjugate cannot be viewed as real numbers.
void as_real_shards(const OpCall& call, const OpPlan& /*plan*/) {
  call.arg(0) = call.arg(0).toTensor().resolve_conj();
  call.op.callBoxed(call.stack);
}

//! The dim in the last argument must not be sharded; the result keeps it.
void keeping_dim(const OpCall& call, int axis, Options& options) {
  const std::int64_t dim = call.dim_arg(call.count() - 1, call.dims(0));
  map_dims(call, axis, options, true, [&](std::int64_t d) { return d == dim ? -1 : d; });
}

//! chunk(self, chunks, dim): libtorch's view kernel would not notice that the tensor was redistributed.
bool replace_chunk(const OpCall& call) {
  const at::Tensor x = call.arg(0).toTensor();
  const std::int64_t chunks = call.arg(1).toInt(), dim = call.dim_arg(2, x.dim());
  const std::int64_t each = std::max<std::int64_t>((x.size(dim) + chunks - 1) / chunks, 1);
  finish(call, x.split(each, dim));
  return true;
}

void sliced(const OpCall& call, int axis, Options& options) {
  const std::int64_t dim = call.dim_arg(1, call.dims(0));
  const std::int64_t size = call.sizes(0)[static_cast<std::size_t>(dim)];
  const bool all = (call.arg(2).isNone() || call.arg(2).toInt() == 0) &&
                   (call.arg(3).isNone() || call.arg(3).toInt() >= size) && call.arg(4).toInt() == 1;
  map_dims(call, axis, options, true, [&](std::int64_t d) { return d == dim && !all ? -1 : d; });
}

//! The dim in argument 1 is removed.
void dropping_dim(const OpCall& call, int axis, Options& options) {
  const std::int64_t dim = call.dim_arg(1, call.dims(0));
  map_dims(call, axis, options, true, [&](std::int64_t d) { return d == dim ? -1 : d > dim ? d - 1 : d; });
}

//! diagonal(self, offset, dim1, dim2): the two dims are removed, the diagonal becomes the last dim.
void diagonal_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t a = call.dim_arg(2, call.dims(0)), b = call.dim_arg(3, call.dims(0));
  map_dims(call, axis, options, true,
           [&](std::int64_t d) { return d == a || d == b ? -1 : d - (a < d ? 1 : 0) - (b < d ? 1 : 0); });
}

//! unfold(self, dim, size, step): windows along `dim`; their elements become the last dim.
void unfolded(const OpCall& call, int axis, Options& options) {
  const std::int64_t dim = call.dim_arg(1, call.dims(0));
  map_dims(call, axis, options, true, [&](std::int64_t d) { return d == dim ? -1 : d; });
}

// --- backward functions of views, which take the sizes of the input

void slice_backward_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dim = call.dim_arg(2, call.dims(0));
  map_dims(call, axis, options, true, [&](std::int64_t d) { return d == dim ? -1 : d; });
}

void select_backward_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dim = call.dim_arg(2, call.dims(0) + 1);
  map_dims(call, axis, options, true, [&](std::int64_t d) { return d < dim ? d : d + 1; });
}

//! diagonal_backward(grad, input_sizes, offset, dim1, dim2)
void diagonal_backward_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dims = call.dims(0) + 1, last = call.dims(0) - 1;
  const std::int64_t a = call.dim_arg(3, dims), b = call.dim_arg(4, dims);
  map_dims(call, axis, options, true, [&](std::int64_t d) {
    if (d == last) return std::int64_t{-1};
    if (d >= std::min(a, b)) ++d;
    return d >= std::max(a, b) ? d + 1 : d;
  });
}

//! unfold_backward(grad, input_sizes, dim, size, step)
void unfold_backward_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t last = call.dims(0) - 1;
  const std::int64_t dim = call.dim_arg(2, last);
  map_dims(call, axis, options, true, [&](std::int64_t d) { return d == dim || d == last ? -1 : d; });
}

void local_input_sizes(const OpCall& call, const OpPlan& plan) {
  const Sizes sizes = local_sizes(call.arg(1).toIntVector(), plan.out[0], *call.mesh);
  call.arg(1) = std::vector<std::int64_t>(sizes.begin(), sizes.end());
}

// --- views with other sizes

std::vector<std::int64_t> view_sizes(const OpCall& call) {
  std::vector<std::int64_t> sizes = call.arg(1).toIntVector();
  std::int64_t known = 1;
  for (const std::int64_t size : sizes) known *= size == -1 ? 1 : size;
  for (std::int64_t& size : sizes) {
    if (size == -1) size = known == 0 ? 0 : call.tensors[0].tensor.numel() / known;
  }
  return sizes;
}

//! The output dim that is sharded if input dim `dim` is sharded into `shards`, or -1. Input and output dims
//! form groups of equal product. Sharding propagates along the first dim of a group if `shards` divides it on
//! both sides.
std::int64_t through_view(c10::IntArrayRef from, c10::IntArrayRef to, std::int64_t dim, std::int64_t shards) {
  if (product(from) == 0) return from == to ? dim : -1;
  std::size_t i = 0, j = 0;
  while (i < from.size()) {
    const std::size_t i0 = i, j0 = j;
    std::int64_t a = from[i++], b = j < to.size() ? to[j++] : 1;
    while (a != b) {
      if (a < b ? i == from.size() : j == to.size()) return -1;  // not the sizes of a view
      if (a < b) {
        a *= from[i++];
      } else {
        b *= to[j++];
      }
    }
    if (dim < static_cast<std::int64_t>(i0) || dim >= static_cast<std::int64_t>(i)) continue;
    const auto first = [](c10::IntArrayRef sizes, std::size_t begin, std::size_t end) {
      while (begin + 1 < end && sizes[begin] == 1) ++begin;
      return begin;
    };
    const std::size_t in = first(from, i0, i), out = j0 < j ? first(to, j0, j) : j0;
    if (static_cast<std::int64_t>(in) != dim || out >= j) return -1;
    if (from[in] == to[out]) return static_cast<std::int64_t>(out);
    return from[in] % shards == 0 && to[out] % shards == 0 ? static_cast<std::int64_t>(out) : -1;
  }
  return -1;
}

void viewed(const OpCall& call, int axis, Options& options) {
  const auto sizes = view_sizes(call);
  map_dims(call, axis, options, true, [&](std::int64_t d) {
    return through_view(call.sizes(0), sizes, d, call.shards_if_sharded(0, d, axis));
  });
}

//! The view of a local shard may need a copy even if the global view does not.
void view_shards(const OpCall& call, const OpPlan& plan) {
  // The argument holds global sizes; `tensors` still holds the global tensor.
  const Sizes sizes = local_sizes(view_sizes(call), plan.out[0], *call.mesh);
  const at::Tensor local = call.arg(0).toTensor();
  finish(call, local.reshape(sizes));
}

void expanded(const OpCall& call, int axis, Options& options) {
  const auto sizes = call.arg(1).toIntVector();
  const std::int64_t more = static_cast<std::int64_t>(sizes.size()) - call.dims(0);
  if (more < 0) return;  // libtorch reports the error
  map_dims(call, axis, options, true, [&](std::int64_t d) {
    const std::int64_t size = call.sizes(0)[static_cast<std::size_t>(d)],
                       wide = sizes[static_cast<std::size_t>(d + more)];
    return wide == -1 || wide == size ? d + more : -1;
  });
}

void local_expand(const OpCall& call, const OpPlan& plan) {
  auto sizes = call.arg(1).toIntVector();
  const std::size_t more = sizes.size() - call.sizes(0).size();
  for (std::size_t d = more; d < sizes.size(); ++d) {
    if (sizes[d] == -1) sizes[d] = call.sizes(0)[d - more];
  }
  const Sizes local = local_sizes(sizes, plan.out[0], *call.mesh);
  call.arg(1) = std::vector<std::int64_t>(local.begin(), local.end());
}

void repeated(const OpCall& call, int axis, Options& options) {
  const auto times = call.arg(1).toIntVector();
  const std::int64_t more = static_cast<std::int64_t>(times.size()) - call.dims(0);
  if (more < 0) return;  // libtorch reports the error
  map_dims(call, axis, options, true,
           [&](std::int64_t d) { return times[static_cast<std::size_t>(d + more)] == 1 ? d + more : -1; });
}

void padded(const OpCall& call, int axis, Options& options) {
  const auto padding = call.arg(1).toIntVector();
  map_dims(call, axis, options, false, [&](std::int64_t d) {
    const auto at = static_cast<std::size_t>(2 * (call.dims(0) - 1 - d));
    return at + 1 < padding.size() && (padding[at] != 0 || padding[at + 1] != 0) ? -1 : d;
  });
}

// --- several tensors

//! The dim along which cat and stack join. Throws ShapeError if the global sizes do not match, even if those
//! of the shards do.
std::int64_t joined_dim(const OpCall& call, bool stack) {
  // cat ignores empty 1-D tensors.
  const auto skipped = [&](std::size_t i) { return !stack && call.sizes(i) == c10::IntArrayRef{0}; };
  std::size_t first = 0;
  while (first + 1 < call.tensors.size() && skipped(first)) ++first;
  const auto want = call.sizes(first);
  const std::int64_t dim = call.dim_arg(1, call.dims(first) + (stack ? 1 : 0));
  for (std::size_t i = first + 1; i < call.tensors.size(); ++i) {
    if (skipped(i)) continue;
    bool fits = call.sizes(i).size() == want.size();
    for (std::size_t d = 0; fits && d < want.size(); ++d)
      fits = call.sizes(i)[d] == want[d] || (!stack && static_cast<std::int64_t>(d) == dim);
    if (!fits)
      throw ShapeError(
          str_cat("tensors of these sizes cannot be joined along dim ", dim, ": ", to_string(call)),
          {.op = call.op.schema().name()});
  }
  return dim;
}

void joined(const OpCall& call, int axis, Options& options) {
  const bool stack = call.op.schema().name() == "aten::stack";
  const std::int64_t dim = joined_dim(call, stack);
  c10::SmallVector<AxisPlacement, 4> done;
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    const AxisPlacement here = call.at(i, axis);
    if (here.is_replicate() || std::find(done.begin(), done.end(), here) != done.end()) continue;
    done.push_back(here);
    if (here.is_shard() && here.dim() == dim && !stack) continue;
    if (here.is_partial() && here.reduce() != comm::ReduceOp::Sum) continue;
    Option option = call.option();
    for (std::size_t k = 0; k < option.in.size(); ++k) {
      // cat ignores an empty 1-D tensor, which has no dims to shard.
      if (here.is_partial() || call.dims(k) > here.dim()) option.in[k] = here;
    }
    option.out[0] =
        here.is_shard() && stack && here.dim() >= dim ? AxisPlacement(Shard(here.dim() + 1)) : here;
    options.push_back(option);
  }
}

}  // namespace

void add_view_rules(RuleTable& table) {
  table["t"] = table["transpose.int"] = {.options = transposed};
  table["permute"] = {.options = permuted};
  table["unsqueeze"] = {.options = unsqueezed};
  table["squeeze"] = table["squeeze.dim"] =
      table["squeeze.dims"] = {.options = squeezed, .execute = squeeze_shards};
  table["_conj"] = table["_neg_view"] = {.options = each_element};
  table["view_as_real"] = {.options = each_element, .execute = as_real_shards};
  table["view_as_complex"] = {.options = to_complex};
  table["slice.Tensor"] = {.options = sliced};
  table["select.int"] = table["unbind.int"] = {.options = dropping_dim};
  table["split.Tensor"] = table["split_with_sizes"] = {.options = keeping_dim};
  table["chunk"] = {.options = keeping_dim, .replace = replace_chunk, .composite = true};
  table["slice_backward"] = {.options = slice_backward_options, .localize = local_input_sizes};
  table["diagonal"] = {.options = diagonal_options};
  table["diagonal_backward"] = {.options = diagonal_backward_options, .localize = local_input_sizes};
  table["unfold"] = {.options = unfolded};
  table["unfold_backward"] = {.options = unfold_backward_options, .localize = local_input_sizes};
  table["select_backward"] = {.options = select_backward_options, .localize = local_input_sizes};
  table["view"] = table["_unsafe_view"] =
      table["_reshape_alias"] = {.options = viewed, .execute = view_shards};
  table["expand"] = {.options = expanded, .localize = local_expand};
  table["repeat"] = {.options = repeated};
  table["constant_pad_nd"] = {.options = padded};
  table["cat"] = table["stack"] = {.options = joined, .joins = true};
}

}  // namespace penstock::tensor
