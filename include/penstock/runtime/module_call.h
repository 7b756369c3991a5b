// Module calls with hooks. torch::nn modules have no forward hooks in C++. A model that calls its submodules
// as `call(block, x)` instead of `block->forward(x)` lets sharding gather their parameters around each call.
#pragma once

#include <penstock/runtime/detail/call_hooks.h>
#include <penstock/value/tensors_in.h>

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
  hooks->before();
  auto output = detail::hooked_forward(*hooks, *module, std::index_sequence_for<Args...>(),
                                       std::forward<Args>(args)...);
  hooks->after(value::tensors_in(output));
  return output;
}

//! Overload for TORCH_MODULE holders.
template <ModuleHolder Holder, class... Args>
auto call(const Holder& holder, Args&&... args) {
  return call(holder.ptr(), std::forward<Args>(args)...);
}

}  // namespace penstock::runtime
