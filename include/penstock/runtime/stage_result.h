// The result of a stage's forward pass, and the type of forward functions.
#pragma once

#include <penstock/value/microbatch.h>

#include <ATen/core/ivalue.h>

#include <functional>
#include <type_traits>
#include <utility>

namespace penstock::runtime {

struct StageResult;

namespace detail {

//! A value that a forward function may return instead of a StageResult.
template <class Type>
concept OutputValue =
    std::is_constructible_v<c10::IValue, Type> && !std::is_same_v<std::decay_t<Type>, StageResult>;

}  // namespace detail

//! The result of a forward pass: the output (the arguments of the next stage, one per item if it is a tuple,
//! or the output of the pipeline) and the values that later stages take by name (see SkipValue).
struct StageResult {
  c10::IValue output;
  value::Kwargs skips;

  StageResult() = default;
  template <detail::OutputValue T>
  StageResult(T&& value)  // NOLINT: plain values convert implicitly
      : output(std::forward<T>(value)) {}
  StageResult(c10::IValue value, value::Kwargs named) : output(std::move(value)), skips(std::move(named)) {}
};

//! The forward function of a stage.
using StageFunction = std::function<StageResult(const value::Args& args, const value::Kwargs& kwargs)>;

}  // namespace penstock::runtime
