// Autocast, and what is counted.
#include "train/watched_stage.h"

#include "train/tensor_parallel.h"

#include <penstock/value/tree.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/isfinite.h>
#include <malloc.h>

#include <algorithm>

namespace penstock::train {
namespace {

class AutocastScope {
 public:
  explicit AutocastScope(Precision precision) : on_(precision == Precision::Bfloat16) {
    if (!on_) return;
    was_ = at::autocast::is_autocast_enabled(at::kCPU);
    dtype_ = at::autocast::get_autocast_dtype(at::kCPU);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool on_, was_ = false;
  at::ScalarType dtype_ = at::kBFloat16;
};

bool finite(const c10::IValue& tree) {
  for (const c10::IValue& leaf : flatten(tree).leaves) {
    if (!leaf.isTensor()) continue;
    const at::Tensor tensor = local_part(leaf.toTensor());
    if (tensor.defined() && tensor.is_floating_point() && !at::isfinite(tensor.detach()).all().item<bool>())
      return false;
  }
  return true;
}

std::uint64_t bytes_of(const c10::IValue& tree) {
  std::uint64_t bytes = 0;
  for (const c10::IValue& leaf : flatten(tree).leaves)
    if (leaf.isTensor() && leaf.toTensor().defined()) bytes += local_part(leaf.toTensor()).nbytes();
  return bytes;
}

std::uint64_t allocated() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace

StageResult WatchedStage::forward(const Args& args, const Kwargs& kwargs) {
  const AutocastScope autocast(watch_->precision);
  const std::uint64_t before = watch_->measure ? allocated() : 0;
  StageResult result = inner_->forward(args, kwargs);
  const int number = forwards_++;
  if (watch_->measure) {
    const std::uint64_t after = allocated();
    output_bytes_ = std::max(output_bytes_, bytes_of(result.output));
    kept_bytes_ = std::max(kept_bytes_, after > before ? after - before : 0);
  }
  if (watch_->finite && !first_bad_ && !finite(result.output) && finite(c10::ivalue::Tuple::create(args)))
    first_bad_ = number;
  return result;
}

void WatchedStage::forget() {
  forwards_ = 0;
  first_bad_.reset();
}

}  // namespace penstock::train
