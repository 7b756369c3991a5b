// The loss of a pipeline, made from any function that computes one.
#pragma once

#include <penstock/value/microbatch.h>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

namespace penstock::runtime {

//! A module whose `forward` takes two tensors, such as `torch::nn::MSELoss()`.
template <class Holder>
concept ModuleLoss = requires(Holder& holder, const at::Tensor& tensor) {
  holder.ptr()->forward(tensor, tensor);
};

//! A function of two values of any structure, output and target.
template <class Function>
concept TreeLoss = std::is_invocable_r_v<at::Tensor, Function&, const c10::IValue&, const c10::IValue&>;

//! A function of two values of any structure and the further keyword arguments of the loss.
template <class Function>
concept KeywordLoss = std::is_invocable_r_v<at::Tensor, Function&, const c10::IValue&, const c10::IValue&,
                                            const value::Kwargs&>;

//! A function of two tensors, output and target.
template <class Function>
concept TensorLoss = std::is_invocable_r_v<at::Tensor, Function&, const at::Tensor&, const at::Tensor&>;

//! A function of two tensors and a reduction, such as `torch::mse_loss`.
template <class Function>
concept ReducedTensorLoss =
    std::is_invocable_r_v<at::Tensor, Function&, const at::Tensor&, const at::Tensor&, std::int64_t>;

namespace detail {

using LossCall = std::function<at::Tensor(const c10::IValue& output, const c10::IValue& target,
                                          const value::Kwargs& more)>;

template <class Type, class Other>
concept OtherThan = !std::is_same_v<Type, Other>;

// A function of several kinds is called as the first kind that fits, in the order of these concepts. Each
// excludes the kinds before it. Conditions are checked from left to right, so a function with `auto`
// parameters is instantiated only for arguments that it may get.
template <class Function>
concept CalledWithKeywords = !ModuleLoss<Function> && KeywordLoss<Function>;
template <class Function>
concept CalledWithTrees = !ModuleLoss<Function> && !KeywordLoss<Function> && TreeLoss<Function>;
template <class Function>
concept TakesNoTrees = !ModuleLoss<Function> && !KeywordLoss<Function> && !TreeLoss<Function>;
template <class Function>
concept CalledWithTensors = TakesNoTrees<Function> && TensorLoss<Function>;
template <class Function>
concept CalledWithReduction = TakesNoTrees<Function> && !TensorLoss<Function> && ReducedTensorLoss<Function>;

template <ModuleLoss Holder>
LossCall loss_call(Holder holder) {
  return [module = holder.ptr()](const c10::IValue& output, const c10::IValue& target, const value::Kwargs&) {
    return module->forward(output.toTensor(), target.toTensor());
  };
}

template <CalledWithKeywords Function>
LossCall loss_call(Function function) {
  return LossCall(std::move(function));
}

template <CalledWithTrees Function>
LossCall loss_call(Function function) {
  return [function](const c10::IValue& output, const c10::IValue& target, const value::Kwargs&) mutable {
    return function(output, target);
  };
}

template <CalledWithTensors Function>
LossCall loss_call(Function function) {
  return [function](const c10::IValue& output, const c10::IValue& target, const value::Kwargs&) mutable {
    return function(output.toTensor(), target.toTensor());
  };
}

template <CalledWithReduction Function>
LossCall loss_call(Function function) {
  return [function](const c10::IValue& output, const c10::IValue& target, const value::Kwargs&) mutable {
    return function(output.toTensor(), target.toTensor(), at::Reduction::Mean);
  };
}

template <class Function>
concept AnyLoss = requires(Function function) {
  loss_call(function);
};

//! Whether it is a null function pointer or an empty std::function.
template <class Function>
bool is_null(const Function& function) {
  if constexpr (std::is_constructible_v<Function, std::nullptr_t> && requires { function == nullptr; })
    return function == nullptr;
  else
    return false;
}

}  // namespace detail

//! Computes the loss of one microbatch from the output of the last stage and the target. Constructible from
//!   - a module such as `torch::nn::MSELoss()` (ModuleLoss);
//!   - a function of two values of any structure and, optionally, the further keyword arguments of the loss
//!     (TreeLoss, KeywordLoss);
//!   - a function of two tensors, such as a lambda (TensorLoss);
//!   - a function of two tensors and a reduction, such as `torch::mse_loss`, which is called with the mean
//!     (ReducedTensorLoss).
//! A null pointer or an empty function gives no loss.
class LossFunction {
 public:
  LossFunction() = default;
  LossFunction(std::nullptr_t) {}  // NOLINT: functions are meant to convert
  template <detail::OtherThan<LossFunction> Function>
  LossFunction(Function function) {  // NOLINT: functions are meant to convert
    static_assert(
        detail::AnyLoss<Function>,
        "a loss must be callable with two tensors, output and target, or with (const c10::IValue& output, "
        "const c10::IValue& target, const Kwargs& more): wrap other functions in a lambda, as in "
        "tensor_loss([](const at::Tensor& output, const at::Tensor& target) { return …; })");
    if (!detail::is_null(function)) call_ = detail::loss_call(std::move(function));
  }

  //! Whether there is a loss.
  explicit operator bool() const { return static_cast<bool>(call_); }
  //! Computes the loss; `more` holds the further keyword arguments (StepOptions::loss_kwargs).
  at::Tensor operator()(const c10::IValue& output, const c10::IValue& target,
                        const value::Kwargs& more) const {
    return call_(output, target, more);
  }

 private:
  detail::LossCall call_;
};

//! Makes a loss from a function of two tensors, including one with `auto` parameters.
template <TensorLoss Function>
LossFunction tensor_loss(Function function) {
  return [function](const c10::IValue& output, const c10::IValue& target, const value::Kwargs&) mutable {
    return function(output.toTensor(), target.toTensor());
  };
}

}  // namespace penstock::runtime
