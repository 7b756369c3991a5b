// The tensors in C++ results: a tensor, a c10::IValue, or an optional, vector, map, pair or tuple of these.
#pragma once

#include <penstock/value/tree.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock::value {

namespace detail {

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

[[noreturn]] void throw_unknown_result();

}  // namespace detail

//! Whether an object of this type can contain tensors that `replace_tensors` finds.
template <class T>
inline constexpr bool kHoldsTensors = detail::HoldsTensors<T>::value;

//! Replaces every tensor in `result` by map(tensor). Does nothing for types without tensors.
template <class Result, class Map>
void replace_tensors(Result& result, const Map& map) {
  if constexpr (!kHoldsTensors<Result>) {
    return;
  } else if constexpr (std::is_same_v<Result, at::Tensor>) {
    if (result.defined()) result = map(result);
  } else if constexpr (std::is_same_v<Result, c10::IValue>) {
    result = map_tensors(result, map);
  } else if constexpr (requires { std::tuple_size<Result>::value; }) {
    std::apply([&](auto&... items) { (replace_tensors(items, map), ...); }, result);
  } else if constexpr (requires { result.has_value(); }) {
    if (result) replace_tensors(*result, map);
  } else if constexpr (requires { typename Result::mapped_type; }) {
    for (auto& [key, item] : result) replace_tensors(item, map);
  } else {
    for (auto& item : result) replace_tensors(item, map);
  }
}

//! Returns the tensors in the result of a module. Throws UsageError for a type whose tensors cannot be found.
template <class Result>
std::vector<at::Tensor> tensors_in(Result& result) {
  std::vector<at::Tensor> tensors;
  if constexpr (kHoldsTensors<Result>) {
    replace_tensors(result, [&](const at::Tensor& tensor) { return tensors.emplace_back(tensor); });
  } else if constexpr (std::is_constructible_v<c10::IValue, Result>) {
    tensors = tensors_of(c10::IValue(result));
  } else {
    detail::throw_unknown_result();
  }
  return tensors;
}

}  // namespace penstock::value
