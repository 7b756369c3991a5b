// Module calls with hooks. torch::nn modules have no forward hooks in C++. A model that calls its submodules
// as `call(block, x)` instead of `block->forward(x)` lets sharding gather their parameters around each call.
#pragma once

#include <penstock/value/tree.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

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

template <class T>
struct HoldsTensors : std::false_type {};
template <>
struct HoldsTensors<at::Tensor> : std::true_type {};
template <>
struct HoldsTensors<c10::IValue> : std::true_type {};
template <class T>
struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <class T>
struct HoldsTensors<std::vector<T>> : HoldsTensors<T> {};
template <class K, class T>
struct HoldsTensors<std::map<K, T>> : HoldsTensors<T> {};
template <class... T>
struct HoldsTensors<std::tuple<T...>> : std::disjunction<HoldsTensors<T>...> {};
template <class A, class B>
struct HoldsTensors<std::pair<A, B>> : std::disjunction<HoldsTensors<A>, HoldsTensors<B>> {};

//! Replaces every tensor in `value` by map(tensor).
template <class Value, class Map>
void map_tensors(Value& value, const Map& map) {
  if constexpr (!HoldsTensors<Value>::value) {
    return;
  } else if constexpr (std::is_same_v<Value, at::Tensor>) {
    if (value.defined()) value = map(value);
  } else if constexpr (std::is_same_v<Value, c10::IValue>) {
    value = penstock::value::map_tensors(value, map);
  } else if constexpr (requires { std::tuple_size<Value>::value; }) {
    std::apply([&](auto&... items) { (map_tensors(items, map), ...); }, value);
  } else if constexpr (requires { value.has_value(); }) {
    if (value) map_tensors(*value, map);
  } else if constexpr (requires { typename Value::mapped_type; }) {
    for (auto& [key, item] : value) map_tensors(item, map);
  } else {
    for (auto& item : value) map_tensors(item, map);
  }
}

[[noreturn]] void unknown_result_type();

//! The tensors in a result. Throws UsageError for a type whose tensors cannot be found.
template <class Value>
std::vector<at::Tensor> tensors_in(Value& value) {
  std::vector<at::Tensor> tensors;
  if constexpr (HoldsTensors<Value>::value) {
    map_tensors(value, [&](const at::Tensor& tensor) { return tensors.emplace_back(tensor); });
  } else if constexpr (std::is_constructible_v<c10::IValue, Value>) {
    tensors = penstock::value::tensors_of(c10::IValue(value));
  } else {
    unknown_result_type();
  }
  return tensors;
}

template <class Arg>
decltype(auto) hooked_argument(CallHooks& hooks, std::size_t index, Arg&& arg) {
  using Value = std::decay_t<Arg>;
  if constexpr (HoldsTensors<Value>::value) {
    Value value = std::forward<Arg>(arg);
    map_tensors(value, [&](const at::Tensor& tensor) { return hooks.argument(tensor, index); });
    return value;
  } else {
    return std::forward<Arg>(arg);
  }
}

template <class Module, class... Args, std::size_t... I>
auto hooked_forward(CallHooks& hooks, Module& module, std::index_sequence<I...> /*indices*/, Args&&... args) {
  hooks.expect_arguments(sizeof...(Args));
  auto output = module.forward(hooked_argument(hooks, I, std::forward<Args>(args))...);
  std::size_t count = 0;
  map_tensors(output, [&](const at::Tensor& tensor) { return ++count, tensor; });
  hooks.expect_results(count);
  std::size_t index = 0;
  map_tensors(output, [&](const at::Tensor& tensor) { return hooks.result(tensor, index++); });
  return output;
}

}  // namespace detail

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
  hooks->after(detail::tensors_in(output));
  return output;
}

template <ModuleHolder Holder, class... Args>
auto call(const Holder& holder, Args&&... args) {
  return call(holder.ptr(), std::forward<Args>(args)...);
}

}  // namespace penstock::runtime
