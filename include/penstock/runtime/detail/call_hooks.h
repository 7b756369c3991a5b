// The hooks that run around each call of a module, and the call with hooks.
#pragma once

#include <penstock/value/tensors_in.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock::runtime::detail {

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

}  // namespace penstock::runtime::detail
