// Implements autocast, byte counts and the search for values that are not finite.
#include "train/diagnostics/instrumented_stage.h"

#include "runtime/step/allocated_bytes.h"
#include "train/diagnostics/operator_observer.h"
#include "train/model/tensor_parallel_stage.h"

#include <penstock/value/tree.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>

namespace penstock::train {
namespace {

class AutocastScope {
 public:
  AutocastScope(Precision precision, at::DeviceType device)
      : on_(precision != Precision::Float32), device_(device) {
    if (!on_) return;
    was_ = at::autocast::is_autocast_enabled(device_);
    dtype_ = at::autocast::get_autocast_dtype(device_);
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, precision == Precision::Float16 ? at::kHalf : at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_);
    at::autocast::set_autocast_dtype(device_, dtype_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool on_, was_ = false;
  at::DeviceType device_;
  at::ScalarType dtype_ = at::kBFloat16;
};

// The first tensor of a tree that is not finite, with the value and its row.
struct BadTensor {
  at::Tensor tensor;
  std::string value;
  std::int64_t row = 0;
};

std::optional<BadTensor> bad_tensor(const c10::IValue& tree) {
  for (const at::Tensor& full : value::tensors_of(tree)) {
    const at::Tensor tensor = local_shard(full).detach();
    if (!tensor.is_floating_point()) continue;
    const at::Tensor positions = at::isfinite(tensor).logical_not().flatten().nonzero();
    if (positions.size(0) == 0) continue;
    const auto position = positions[0].item<std::int64_t>();
    const auto value = tensor.flatten()[position].item<double>();
    const std::int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
    return BadTensor{full,
                     std::isnan(value) ? "nan"
                     : value > 0       ? "inf"
                                       : "-inf",
                     position / (tensor.numel() / rows)};
  }
  return std::nullopt;
}

std::vector<at::Tensor> suspects(const std::optional<BadTensor>& bad) {
  return bad ? std::vector{bad->tensor} : std::vector<at::Tensor>();
}

std::uint64_t bytes_of(const c10::IValue& tree) {
  std::uint64_t bytes = 0;
  for (const c10::IValue& leaf : value::flatten(tree).leaves)
    if (leaf.isTensor() && leaf.toTensor().defined()) bytes += local_shard(leaf.toTensor()).nbytes();
  return bytes;
}

}  // namespace

runtime::StageResult InstrumentedStage::forward(const value::Args& args, const value::Kwargs& kwargs) {
  const AutocastScope autocast(observer_->precision, observer_->device.type());
  const std::uint64_t before = observer_->measure ? runtime::allocated_bytes(observer_->device) : 0;
  runtime::StageResult result =
      observer_->finite && !first_bad_ ? searched_forward(args, kwargs) : inner_->forward(args, kwargs);
  ++forwards_;
  if (observer_->measure) {
    const std::uint64_t after = runtime::allocated_bytes(observer_->device);
    output_bytes_ = std::max(output_bytes_, bytes_of(result.output));
    kept_bytes_ = std::max(kept_bytes_, after > before ? after - before : 0);
  }
  return result;
}

// Blames a parameter that is not finite first, then an input.
runtime::StageResult InstrumentedStage::searched_forward(const value::Args& args,
                                                         const value::Kwargs& kwargs) {
  NotFinite found{.microbatch = forwards_};
  std::optional<BadTensor> bad;
  const auto look = [&](NotFinite::Kind kind, const std::string& name, const c10::IValue& value) {
    if (bad || !(bad = bad_tensor(value))) return;
    found.kind = kind;
    found.name = name;
  };
  for (const value::NamedTensor& item : parameters())
    look(NotFinite::Kind::Parameter, item.name, item.tensor);
  for (std::size_t i = 0; i < args.size(); ++i) look(NotFinite::Kind::Argument, std::to_string(i), args[i]);
  for (const auto& [name, value] : kwargs) look(NotFinite::Kind::Keyword, name, value);
  runtime::StageResult result;
  {
    const OperatorObserver operators(suspects(bad));
    result = inner_->forward(args, kwargs);
    found.op = operators.first();
  }
  std::optional<BadTensor> given = bad_tensor(result.output);
  for (const auto& [name, value] : result.skips)
    if (!given) given = bad_tensor(value);
  if (!bad && !given) return result;
  found.value = (bad ? bad : given)->value;
  found.row = (bad ? bad : given)->row;
  found.hidden = !given;
  if (given) first_bad_ = found;
  if (!given && !hidden_bad_) hidden_bad_ = found;
  return result;
}

runtime::LossFunction observed_loss(runtime::LossFunction loss, runtime::LossReduction reduction,
                                    std::shared_ptr<StageObserver> observer) {
  return [loss = std::move(loss), reduction = std::move(reduction), observer = std::move(observer)](
             const c10::IValue& output, const c10::IValue& target, const value::Kwargs& more) {
    if (!observer->finite || observer->loss) return loss(output, target, more);
    const std::optional<BadTensor> bad = bad_tensor(target);
    NotFinite found{.kind = bad ? NotFinite::Kind::Target : NotFinite::Kind::Loss,
                    .microbatch = observer->losses++};
    at::Tensor value;
    {
      const OperatorObserver operators(suspects(bad));
      value = loss(output, target, more);
      found.op = operators.first();
    }
    if (reduction.weight_of(target) == 0.0) return value;
    if (const std::optional<BadTensor> given = bad_tensor(value)) {
      found.value = (bad ? bad : given)->value;
      found.row = bad ? bad->row : 0;
      observer->loss = found;
    }
    return value;
  };
}

void InstrumentedStage::reset() {
  forwards_ = 0;
  first_bad_.reset();
  hidden_bad_.reset();
}

}  // namespace penstock::train
