// Module calls with hooks. torch::nn modules have no forward hooks in C++. A model that calls its submodules
// as `call(block, x)` instead of `block->forward(x)` lets sharding gather their parameters around each call.
#pragma once

#include <penstock/value/tensors_in.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace penstock::runtime {

namespace detail {

//! Hooks that run around each call of a module.
class CallHooks {
 public:
  virtual ~CallHooks() = default;
  virtual void before() = 0;
  //! `outputs` are the tensors that the call returned.
  virtual void after(const std::vector<at::Tensor>& outputs) = 0;
  //! Replaces a tensor in the `index`-th argument before the module sees it, and the `index`-th tensor of the
  //! result (a tensor, or a tuple, list or tree of tensors) before the caller sees it.
  virtual at::Tensor argument(const at::Tensor& tensor, std::size_t /*index*/) { return tensor; }
  virtual at::Tensor result(const at::Tensor& tensor, std::size_t /*index*/) { return tensor; }
  //! Receive the number of arguments, and of tensors in the result, before `argument` and `result` are
  //! called.
  virtual void expect_arguments(std::size_t /*count*/) {}
  virtual void expect_results(std::size_t /*count*/) {}
  //! Whether these hooks are exclusive: a module can have at most one set of exclusive hooks.
  virtual bool exclusive() const { return false; }
};

//! The hooks of a module, identified by the address of its object; null if it has none.
std::shared_ptr<CallHooks> hooks_of(const void* module);

template <class Arg>
decltype(auto) hooked_argument(CallHooks& hooks, std::size_t index, Arg&& arg) {
  using Argument = std::decay_t<Arg>;
  if constexpr (value::kHoldsTensors<Argument>) {
    Argument argument = std::forward<Arg>(arg);
    value::replace_tensors(argument, [&](const at::Tensor& tensor) { return hooks.argument(tensor, index); });
    return argument;
  } else {
    return std::forward<Arg>(arg);
  }
}

template <class Module, class... Args, std::size_t... I>
auto hooked_forward(CallHooks& hooks, Module& module, std::index_sequence<I...> /*indices*/, Args&&... args) {
  hooks.expect_arguments(sizeof...(Args));
  auto output = module.forward(hooked_argument(hooks, I, std::forward<Args>(args))...);
  std::size_t count = 0;
  value::replace_tensors(output, [&](const at::Tensor& tensor) { return ++count, tensor; });
  hooks.expect_results(count);
  std::size_t index = 0;
  value::replace_tensors(output, [&](const at::Tensor& tensor) { return hooks.result(tensor, index++); });
  return output;
}

}  // namespace detail

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
