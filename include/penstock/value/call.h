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
};

//! Hooks of one module, for as long as this lives; UsageError for a module that has some already.
class HookedModule {
 public:
  HookedModule(const void* module, std::shared_ptr<CallHooks> hooks);
  ~HookedModule();
  HookedModule(HookedModule&& other) noexcept : module_(std::exchange(other.module_, nullptr)) {}
  HookedModule& operator=(HookedModule&&) = delete;

 private:
  const void* module_;
};

//! Null if it has none. The module is known by the address of its object.
std::shared_ptr<CallHooks> hooks_of(const void* module);

//! module->forward(args…), with what is hooked to it.
template <class Module, class... Args>
auto call(const std::shared_ptr<Module>& module, Args&&... args) {
  const std::shared_ptr<CallHooks> hooks = hooks_of(dynamic_cast<const void*>(module.get()));
  if (!hooks) return module->forward(std::forward<Args>(args)...);
  hooks->before();
  auto output = module->forward(std::forward<Args>(args)...);
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
