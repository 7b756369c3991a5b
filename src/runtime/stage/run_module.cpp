// Calls a module, with or without recomputation.
#include "runtime/stage/run_module.h"

#include <penstock/runtime/recompute.h>

#include <ATen/core/grad_mode.h>

#include <optional>
#include <utility>

namespace penstock::runtime {
namespace {

// The random scope of a microbatch, unless the module uses the default generator.
class StageScope {
 public:
  StageScope(const PipelineStage& stage, const RandomKey& key) {
    if (!stage.module().uses_default_generator()) scope_.emplace(key);
  }

 private:
  std::optional<RandomScope> scope_;
};

// Recomputation works on trees. The arguments are flattened into one tree (positional first, then keyword
// arguments; the names are kept outside), and so are the output and the skip values.
class Recomputed {
 public:
  Recomputed(PipelineStage stage, const value::Kwargs& kwargs, RandomKey key)
      : stage_(std::move(stage)), key_(std::move(key)) {
    for (const auto& [name, value] : kwargs) names_.push_back(name);
  }

  c10::IValue operator()(const std::vector<c10::IValue>& values) const {
    const auto count = static_cast<std::ptrdiff_t>(values.size() - names_.size());
    const value::Args args(values.begin(), values.begin() + count);
    value::Kwargs kwargs;
    for (std::size_t i = 0; i < names_.size(); ++i)
      kwargs[names_[i]] = values[static_cast<std::size_t>(count) + i];
    const StageScope random(stage_, key_);
    const StageResult result = stage_.module().forward(args, kwargs);
    c10::impl::GenericDict skips(c10::StringType::get(), c10::AnyType::get());
    for (const auto& [name, value] : result.skips) skips.insert(name, value);
    return c10::ivalue::Tuple::create({result.output, skips});
  }

 private:
  PipelineStage stage_;  // a copy of the handle: the backward pass may outlive the caller's stage
  RandomKey key_;
  std::vector<std::string> names_;
};

}  // namespace

StageResult run_module(const PipelineStage& stage, const value::Args& args, const value::Kwargs& kwargs,
                       const RandomKey& key) {
  if (!stage.options().recompute || !at::GradMode::is_enabled()) {
    const StageScope random(stage, key);
    return stage.module().forward(args, kwargs);
  }
  std::vector<c10::IValue> values = args;
  for (const auto& [name, value] : kwargs) values.push_back(value);
  RecomputeOptions options;
  options.preserve_random = stage.module().uses_default_generator();  // else RandomScope reproduces them
  const c10::IValue result = recompute_tree(Recomputed(stage, kwargs, key), values, options);
  const auto& parts = result.toTupleRef().elements();
  value::Kwargs skips;
  for (const auto& item : parts[1].toGenericDict()) skips[item.key().toStringRef()] = item.value();
  return {parts[0], std::move(skips)};
}

}  // namespace penstock::runtime
