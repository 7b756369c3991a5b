// The hooks that run around each call of a module, and the call with hooks.
#pragma once

#include <penstock/runtime/recompute.h>
#include <penstock/value/tensors_in.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <tuple>
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
  //! Whether the backward pass of a call runs the call, with its hooks, again.
  virtual bool recomputes() const { return false; }
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

//! A call of the module between `before` and `after`.
template <class Module, class... Args>
auto hooked_call(CallHooks& hooks, Module& module, Args&&... args) {
  hooks.before();
  auto output =
      hooked_forward(hooks, module, std::index_sequence_for<Args...>(), std::forward<Args>(args)...);
  hooks.after(value::tensors_in(output));
  return output;
}

//! The same with recomputation. The tensors of arguments and result pass through `recompute`; the function
//! holds the arguments themselves.
template <class Module, class... Args>
auto recomputed_call(const std::shared_ptr<CallHooks>& hooks, const std::shared_ptr<Module>& module,
                     Args&&... args) {
  using Stored = std::tuple<std::decay_t<Args>...>;
  using Result = decltype(hooked_call(*hooks, *module, std::forward<Args>(args)...));
  Stored stored(args...);
  std::vector<at::Tensor> inputs;
  value::replace_tensors(stored, [&](const at::Tensor& tensor) { return inputs.emplace_back(tensor); });
  const auto first = std::make_shared<std::optional<Result>>();
  const TensorFunction function = [hooks, module, stored, first](const std::vector<at::Tensor>& tensors) {
    Stored values = stored;
    std::size_t next = 0;
    value::replace_tensors(values, [&](const at::Tensor&) { return tensors[next++]; });
    Result result = std::apply(
        [&](std::decay_t<Args>&... items) {
          return hooked_call(*hooks, *module, static_cast<Args&&>(items)...);
        },
        values);
    std::vector<at::Tensor> outputs = value::tensors_in(result);
    if (!*first) first->emplace(std::move(result));
    return outputs;
  };
  const std::vector<at::Tensor> outputs = recompute(function, inputs);
  Result result = std::move(**first);
  std::size_t next = 0;
  value::replace_tensors(result, [&](const at::Tensor&) { return outputs[next++]; });
  return result;
}

}  // namespace penstock::runtime::detail
