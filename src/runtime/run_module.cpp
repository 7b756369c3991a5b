// The call of a module, plain or recomputed.
#include "runtime/run_module.h"

#include <penstock/runtime/recompute.h>

#include <ATen/core/grad_mode.h>

namespace penstock {
namespace {

// Recomputation knows trees, so arguments and results travel through it as trees: first the positional
// arguments, then the keyword ones, whose names wait outside; the output, then the skip values by name.
class Recomputed {
 public:
  Recomputed(const PipelineStage& stage, const Kwargs& kwargs, const RandomKey& key)
      : stage_(stage), key_(key) {
    for (const auto& [name, value] : kwargs) names_.push_back(name);
  }

  c10::IValue operator()(const std::vector<c10::IValue>& values) const {
    const auto count = static_cast<std::ptrdiff_t>(values.size() - names_.size());
    const Args args(values.begin(), values.begin() + count);
    Kwargs kwargs;
    for (std::size_t i = 0; i < names_.size(); ++i)
      kwargs[names_[i]] = values[static_cast<std::size_t>(count) + i];
    const RandomScope random(key_);
    const StageResult result = stage_.module().forward(args, kwargs);
    c10::impl::GenericDict skips(c10::StringType::get(), c10::AnyType::get());
    for (const auto& [name, value] : result.skips) skips.insert(name, value);
    return c10::ivalue::Tuple::create({result.output, skips});
  }

 private:
  PipelineStage stage_;  // a handle: the backward may outlive the caller's
  RandomKey key_;
  std::vector<std::string> names_;
};

}  // namespace

StageResult run_module(const PipelineStage& stage, const Args& args, const Kwargs& kwargs,
                       const RandomKey& key) {
  if (!stage.options().recompute || !at::GradMode::is_enabled()) {
    const RandomScope random(key);
    return stage.module().forward(args, kwargs);
  }
  std::vector<c10::IValue> values = args;
  for (const auto& [name, value] : kwargs) values.push_back(value);
  RecomputeOptions options;
  options.preserve_random = false;  // the scope repeats itself
  const c10::IValue result = recompute_tree(Recomputed(stage, kwargs, key), values, options);
  const auto& parts = result.toTupleRef().elements();
  Kwargs skips;
  for (const auto& item : parts[1].toGenericDict()) skips[item.key().toStringRef()] = item.value();
  return {parts[0], std::move(skips)};
}

}  // namespace penstock
