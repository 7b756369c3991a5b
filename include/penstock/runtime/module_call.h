// Module calls with hooks. torch::nn modules have no forward hooks in C++. A model that calls its submodules
// as `call(block, x)` instead of `block->forward(x)` lets sharding gather their parameters around each call,
// and lets their activations be recomputed (recompute.h).
#pragma once

#include <penstock/runtime/detail/call_hooks.h>
#include <penstock/value/tensors_in.h>

#include <c10/core/GradMode.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace torch::nn {
class Module;
}

namespace penstock::runtime {

//! A class that derives from torch::nn::Module.
template <class Type>
concept TorchModule = std::is_base_of_v<torch::nn::Module, Type>;

//! The holders that TORCH_MODULE defines, such as torch::nn::Linear.
template <class Type>
concept ModuleHolder = requires(const Type& holder) {
  holder.ptr()->parameters();
};

//! Calls module->forward(args…) and runs the hooks of the module.
template <class Module, class... Args>
auto call(const std::shared_ptr<Module>& module, Args&&... args) {
  const std::shared_ptr<detail::CallHooks> hooks = detail::hooks_of(dynamic_cast<const void*>(module.get()));
  if (!hooks) return module->forward(std::forward<Args>(args)...);
  if constexpr ((std::is_copy_constructible_v<std::decay_t<Args>> && ...)) {
    if (hooks->recomputes() && c10::GradMode::is_enabled())
      return detail::recomputed_call(hooks, module, std::forward<Args>(args)...);
  }
  return detail::hooked_call(*hooks, *module, std::forward<Args>(args)...);
}

//! Overload for TORCH_MODULE holders.
template <ModuleHolder Holder, class... Args>
auto call(const Holder& holder, Args&&... args) {
  return call(holder.ptr(), std::forward<Args>(args)...);
}

}  // namespace penstock::runtime
