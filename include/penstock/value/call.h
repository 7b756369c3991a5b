// Calls of modules that others may hook into. Modules of torch::nn have no hooks in C++; a model that calls
// its parts as `call(block, x)` instead of `block->forward(x)` lets sharding gather a part's parameters
// around each call.
#pragma once

#include <penstock/value/tree.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock {

//! What is done around each call of a module.
class CallHooks {
 public:
  virtual ~CallHooks() = default;
  virtual void before() = 0;
  //! `outputs`: the tensors that the call gave.
  virtual void after(const std::vector<at::Tensor>& outputs) = 0;
  //! What the module gets in place of an argument that is a tensor, and the caller in place of a result that
  //! is.
  virtual at::Tensor argument(const at::Tensor& tensor, std::size_t /*index*/) { return tensor; }
  virtual at::Tensor result(const at::Tensor& tensor) { return tensor; }
  //! Whether no other hooks that say so may be on the same module.
  virtual bool alone() const { return false; }
};

//! Hooks of one module, for as long as this lives. A module may have several: those that came first see a
//! call first and its results last. UsageError for two that must be alone.
class HookedModule {
 public:
  HookedModule(const void* module, std::shared_ptr<CallHooks> hooks);
  ~HookedModule();
  HookedModule(HookedModule&& other) noexcept
      : module_(std::exchange(other.module_, nullptr)), hooks_(std::move(other.hooks_)) {}
  HookedModule& operator=(HookedModule&&) = delete;

 private:
  const void* module_;
  std::shared_ptr<CallHooks> hooks_;
};

//! Null if it has none. The module is known by the address of its object.
std::shared_ptr<CallHooks> hooks_of(const void* module);

namespace detail {

template <class Arg>
decltype(auto) hooked_argument(CallHooks& hooks, std::size_t index, Arg&& arg) {
  if constexpr (std::is_same_v<std::decay_t<Arg>, at::Tensor>) {
    return hooks.argument(arg, index);
  } else {
    return std::forward<Arg>(arg);
  }
}

template <class Module, class... Args, std::size_t... I>
auto hooked_forward(CallHooks& hooks, Module& module, std::index_sequence<I...> /*indices*/, Args&&... args) {
  auto output = module.forward(hooked_argument(hooks, I, std::forward<Args>(args))...);
  if constexpr (std::is_same_v<decltype(output), at::Tensor>) output = hooks.result(output);
  return output;
}

}  // namespace detail

//! module->forward(args…), with what is hooked to it.
template <class Module, class... Args>
auto call(const std::shared_ptr<Module>& module, Args&&... args) {
  const std::shared_ptr<CallHooks> hooks = hooks_of(dynamic_cast<const void*>(module.get()));
  if (!hooks) return module->forward(std::forward<Args>(args)...);
  hooks->before();
  auto output = detail::hooked_forward(*hooks, *module, std::index_sequence_for<Args...>(),
                                       std::forward<Args>(args)...);
  if constexpr (std::is_constructible_v<c10::IValue, decltype(output)>) {
    hooks->after(tensors_of(c10::IValue(output)));
  } else {
    hooks->after({});
  }
  return output;
}

//! The same for the holders that TORCH_MODULE makes.
template <class Holder, class... Args>
requires requires(const Holder& holder) {
  holder.ptr()->parameters();
}
auto call(const Holder& holder, Args&&... args) {
  return call(holder.ptr(), std::forward<Args>(args)...);
}

}  // namespace penstock
