// Log-softmax and negative log-likelihood. Both support sharded classes: only a few numbers per row are
// communicated, and the logits stay local.
#include "tensor/layout/redistribute.h"
#include "tensor/rules/loss_mode.h"
#include "tensor/rules/rules.h"
#include "value/carried_setting.h"

#include <penstock/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

namespace penstock::tensor {

namespace {

constexpr std::string_view kLossParallel = "penstock: LossParallel";
constexpr value::CarriedSetting<bool> loss_parallel(&kLossParallel);

}  // namespace

bool loss_stays_sharded() {
  const bool* const stays = loss_parallel.find();
  return stays != nullptr && *stays;
}

std::shared_ptr<void> keep_loss_sharded() {
  return std::make_shared<value::CarriedSetting<bool>::Scope>(loss_parallel, true);
}

namespace {

//! Keeps only the options with sharded classes.
void keep_sharded(const OpCall& call, Options& options, std::size_t tensor, std::int64_t classes) {
  if (!loss_stays_sharded()) return;
  Options kept;
  for (const Option& option : options) {
    if (option.in[tensor].is_shard(classes)) kept.push_back(option);
  }
  if (kept.empty() && call.mesh->shape.size() == 1) {
    throw UsageError("LossParallel got logits that are not sharded along the class dim: " + to_string(call),
                     {.op = call.op.schema().name()},
                     "shard the last layer with ColwiseParallel, or remove the LossParallel");
  }
  if (!kept.empty()) options = kept;
}

constexpr std::int64_t kNone = 0, kMean = 1;  // values of at::Reduction

double row_bytes(const OpCall& call, std::int64_t dim) {
  const double rows =
      static_cast<double>(call.tensors[0].tensor.numel()) /
      static_cast<double>(std::max<std::int64_t>(call.sizes(0)[static_cast<std::size_t>(dim)], 1));
  return rows * static_cast<double>(call.tensors[0].tensor.element_size()) + 4096;
}

//! Adds the option in which all tensors with the input's dims are sharded along dim d.
void add_shard_option(const OpCall& call, Options& options, std::int64_t d, double bytes = 0) {
  Option option = call.option();
  for (std::size_t i = 0; i < option.in.size(); ++i) {
    if (call.dims(i) == call.dims(0)) option.in[i] = Shard(d);
  }
  for (AxisPlacement& placement : option.out) placement = Shard(d);
  option.bytes = bytes;
  options.push_back(option);
}

void log_softmax_options(const OpCall& call, int axis, Options& options) {
  const bool backward = call.tensors.size() > 1;
  const std::int64_t dim = call.dim_arg(backward ? 2 : 1, call.dims(0));
  for (std::int64_t d = 0; d < call.dims(0); ++d) {
    bool used = false;
    for (std::size_t i = 0; i < call.tensors.size(); ++i) used = used || call.at(i, axis).is_shard(d);
    if (used) add_shard_option(call, options, d, d == dim ? (backward ? 2 : 4) * row_bytes(call, dim) : 0);
  }
  if (!backward && dim + 1 == call.dims(0)) keep_sharded(call, options, 0, dim);
}

c10::SmallVector<int, 2> axes_sharding(const Placements& placements, std::int64_t dim) {
  c10::SmallVector<int, 2> axes;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_shard(dim)) axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

void log_softmax_of_shards(const OpCall& call, const OpPlan& plan) {
  const std::int64_t dim = call.dim_arg(1, call.dims(0));
  const auto axes = axes_sharding(plan.in[0], dim);
  if (axes.empty()) return call.op.callBoxed(call.stack);
  const at::Tensor x = call.arg(0).toTensor();
  Sizes rows(x.sizes().begin(), x.sizes().end());
  rows[static_cast<std::size_t>(dim)] = 1;
  // A local shard may have no classes.
  const at::Tensor max = x.size(dim) > 0
                             ? at::amax(x, {dim}, true).contiguous()
                             : at::full(rows, -std::numeric_limits<double>::infinity(), x.options());
  for (const int axis : axes) reduce_over(max, *call.mesh, axis, comm::ReduceOp::Max);
  const at::Tensor shifted = x - max;
  const at::Tensor sum = shifted.exp().sum({dim}, true).contiguous();
  for (const int axis : axes) reduce_over(sum, *call.mesh, axis, comm::ReduceOp::Sum);
  finish(call, shifted - sum.log());
}

void log_softmax_backward_of_shards(const OpCall& call, const OpPlan& plan) {
  const std::int64_t dim = call.dim_arg(2, call.dims(0));
  const auto axes = axes_sharding(plan.in[0], dim);
  if (axes.empty()) return call.op.callBoxed(call.stack);
  const at::Tensor grad = call.arg(0).toTensor(), output = call.arg(1).toTensor();
  const at::Tensor sum = grad.sum({dim}, true).contiguous();
  for (const int axis : axes) reduce_over(sum, *call.mesh, axis, comm::ReduceOp::Sum);
  finish(call, grad - output.exp() * sum);
}

// nll_loss_forward(self, target, weight?, reduction, ignore_index) -> (loss, total_weight)
void nll_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t reduction = call.arg(3).toInt();
  const std::int64_t classes = call.dims(0) - 1;
  if (call.dims(0) == 2 && (call.at(0, axis).is_shard(0) || call.at(1, axis).is_shard(0))) {
    Option option = call.option();
    option.in[0] = option.in[1] = Shard(0);
    option.out[0] = reduction == kNone ? AxisPlacement(Shard(0)) : AxisPlacement(Partial());
    option.bytes = 4096;
    options.push_back(option);
  }
  if (call.at(0, axis).is_shard(classes)) {
    Option option = call.option();
    option.in[0] = Shard(classes);
    option.out[0] = Partial();
    options.push_back(option);
  }
}

struct Targets {
  at::Tensor inside;  //!< whether the class of the row is on this rank
  at::Tensor local;   //!< its local index; 0 if it is on another rank
  at::Tensor weight;  //!< of the row; 0 if it is ignored
};

Targets localize_targets(const OpCall& call, const at::Tensor& x, const at::Tensor& target,
                         const c10::IValue& weight, std::int64_t ignore, const Placements& placements) {
  const std::int64_t classes = call.dims(0) - 1;
  const int self = call.tensor_at(call.op.schema().name() == "aten::nll_loss_backward" ? 1 : 0);
  const Interval range =
      interval_of(call.sizes(static_cast<std::size_t>(self))[static_cast<std::size_t>(classes)], classes,
                  placements, *call.mesh);
  const at::Tensor kept = target.ne(ignore);
  Targets result;
  result.inside = kept & target.ge(range.start) & target.lt(range.start + range.size);
  result.local = at::where(result.inside, target - range.start, at::zeros_like(target));
  const at::Tensor safe = at::where(kept, target, at::zeros_like(target));
  result.weight = kept.to(x.scalar_type());
  if (!weight.isNone() && weight.toTensor().defined())
    result.weight =
        result.weight * weight.toTensor().index_select(0, safe.reshape({-1})).reshape(safe.sizes());
  return result;
}

void nll_of_shards(const OpCall& call, const OpPlan& plan) {
  const std::int64_t reduction = call.arg(3).toInt(), ignore = call.arg(4).toInt();
  const std::int64_t classes = call.dims(0) - 1;
  const auto class_axes = axes_sharding(plan.in[0], classes);
  const auto row_axes = call.dims(0) == 2 ? axes_sharding(plan.in[0], 0) : c10::SmallVector<int, 2>();
  if (class_axes.empty() && (row_axes.empty() || reduction == kNone)) return call.op.callBoxed(call.stack);
  const at::Tensor x = call.arg(0).toTensor(), target = call.arg(1).toTensor();
  const Targets at = localize_targets(call, x, target, call.arg(2), ignore, plan.in[0]);
  // The local shard of x may have no classes: gather then reads nothing.
  at::Tensor picked =
      x.size(classes) > 0
          ? at::where(at.inside, x.gather(classes, at.local.unsqueeze(classes)).squeeze(classes),
                      at::zeros({}, x.options()))
          : at::zeros(target.sizes(), x.options());
  picked = -picked * at.weight;
  const at::Tensor total = at.weight.sum();
  for (const int axis : row_axes) reduce_over(total, *call.mesh, axis, comm::ReduceOp::Sum);
  at::Tensor loss = reduction == kNone ? picked : picked.sum();
  if (reduction == kMean) loss = loss / total;
  finish(call, loss, reduction == kNone ? at::zeros({}, x.options()) : total);
}

// nll_loss_backward(grad, self, target, weight?, reduction, ignore_index, total_weight) -> grad of self
void nll_backward_options(const OpCall& call, int axis, Options& options) {
  const std::int64_t dims = call.dims(1), classes = dims - 1;
  const bool rows = call.arg(4).toInt() == kNone;
  if (dims == 2 && (call.at(1, axis).is_shard(0) || call.at(2, axis).is_shard(0))) {
    Option option = call.option();
    option.in[1] = option.in[2] = option.out[0] = Shard(0);
    if (rows) option.in[0] = Shard(0);
    options.push_back(option);
  }
  if (call.at(1, axis).is_shard(classes)) {
    Option option = call.option();
    option.in[1] = option.out[0] = Shard(classes);
    options.push_back(option);
  }
}

void nll_backward_of_shards(const OpCall& call, const OpPlan& plan) {
  const std::int64_t classes = call.dims(1) - 1;
  if (axes_sharding(plan.in[1], classes).empty()) return call.op.callBoxed(call.stack);
  const std::int64_t reduction = call.arg(4).toInt(), ignore = call.arg(5).toInt();
  const at::Tensor grad = call.arg(0).toTensor(), x = call.arg(1).toTensor(), target = call.arg(2).toTensor();
  const std::int64_t here = x.dim() - 1;
  const Interval range =
      interval_of(call.sizes(1)[static_cast<std::size_t>(classes)], classes, plan.in[1], *call.mesh);
  const at::Tensor kept = target.ne(ignore);
  const at::Tensor inside = kept & target.ge(range.start) & target.lt(range.start + range.size);
  const at::Tensor local = at::where(inside, target - range.start, at::zeros_like(target));
  at::Tensor each = -grad * inside.to(x.scalar_type());
  if (!call.arg(3).isNone() && call.arg(3).toTensor().defined()) {
    const at::Tensor safe = at::where(kept, target, at::zeros_like(target));
    each = each * call.arg(3).toTensor().index_select(0, safe.reshape({-1})).reshape(safe.sizes());
  }
  // If all labels are ignored, the total weight is 0: the loss is NaN, but its gradient is not.
  if (reduction == kMean)
    each = at::where(inside, each / call.arg(6).toTensor(), at::zeros({}, each.options()));
  const at::Tensor result = at::zeros_like(x, at::MemoryFormat::Contiguous);
  if (x.size(here) > 0) result.scatter_(here, local.unsqueeze(here), each.unsqueeze(here));
  finish(call, result);
}

}  // namespace

void add_loss_rules(RuleTable& table) {
  table["_log_softmax"] = {.options = log_softmax_options, .execute = log_softmax_of_shards};
  table["_log_softmax_backward_data"] = {.options = log_softmax_options,
                                         .execute = log_softmax_backward_of_shards};
  table["nll_loss_forward"] = {.options = nll_options, .execute = nll_of_shards};
  table["nll_loss_backward"] = {.options = nll_backward_options, .execute = nll_backward_of_shards};
}

}  // namespace penstock::tensor
