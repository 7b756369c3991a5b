// Turns the `forward` of a torch::nn module into the forward function of a stage.
#pragma once

#include <penstock/runtime/module_call.h>
#include <penstock/runtime/stage_result.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock::runtime::detail {

//! A torch::nn module whose `forward` is neither a template nor overloaded.
template <class Type>
concept ModuleWithOneForward = TorchModule<Type> && requires {
  &Type::forward;
};

//! A module that declares that one of its overloads is `forward(const Args&, const Kwargs&)`.
template <class Type>
concept DeclaresArgsAndKwargs = requires {
  requires Type::takes_args_and_kwargs;
};

//! A module of which one `forward` can be selected.
template <class Type>
concept SelectsForward = DeclaresArgsAndKwargs<Type> || ModuleWithOneForward<Type>;

//! A module that can be called with the arguments of a stage unchanged.
template <class Type>
concept CallableWithArgsAndKwargs = requires(Type& module, const value::Args& args,
                                             const value::Kwargs& kwargs) {
  module.forward(args, kwargs);
};

//! A module whose `forward` gets the arguments of the stage unchanged.
template <class Type>
concept TakesArgsAndKwargs = SelectsForward<Type> && CallableWithArgsAndKwargs<Type>;

//! The empty set: C++ parameters have no names.
const std::set<std::string>& no_keywords();
//! The hint of errors about keyword arguments: how to make a module accept them.
const char* keywords_hint();
[[noreturn]] void wrong_argument_count(std::size_t given, std::size_t wanted);
//! Throws UsageError if `kwargs` is not empty.
void check_no_keywords(const value::Kwargs& kwargs);

//! Returns the arguments of a forward function in the order of its parameters: first the positional ones,
//! then those given by name. A missing argument is None if it is `optional`. Throws UsageError if an argument
//! is missing, given twice or unknown.
value::Args ordered_arguments(const value::Args& args, const value::Kwargs& kwargs,
                              const std::vector<std::string>& names, const std::vector<bool>& optional);
//! Throws UsageError unless there is exactly one distinct name per parameter.
void check_parameter_names(const std::vector<std::string>& names, std::size_t parameters);

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

//! Wraps module->forward(T0, T1, …) as a stage function: converts arguments to the parameter types.
template <class... Parameters, class Module, class Forward>
StageFunction bind_parameters(std::shared_ptr<Module> module, Forward forward,
                              std::vector<std::string> names) {
  const auto call = [module = std::move(module), forward](const value::Args& args) {
    if (args.size() != sizeof...(Parameters)) wrong_argument_count(args.size(), sizeof...(Parameters));
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return StageResult(((*module).*forward)(args[I].template to<std::decay_t<Parameters>>()...));
    }
    (std::index_sequence_for<Parameters...>());
  };
  if (names.empty()) {
    return [call](const value::Args& args, const value::Kwargs& kwargs) {
      check_no_keywords(kwargs);
      return call(args);
    };
  }
  check_parameter_names(names, sizeof...(Parameters));
  return [call, names = std::move(names)](const value::Args& args, const value::Kwargs& kwargs) {
    static const std::vector<bool> optional{is_optional<std::decay_t<Parameters>>...};
    return call(ordered_arguments(args, kwargs, names, optional));
  };
}

template <class Module, class Owner, class Result, class... Parameters>
StageFunction bind(std::shared_ptr<Module> module, Result (Owner::*forward)(Parameters...),
                   std::vector<std::string> names = {}) {
  return bind_parameters<Parameters...>(std::move(module), forward, std::move(names));
}
template <class Module, class Owner, class Result, class... Parameters>
StageFunction bind(std::shared_ptr<Module> module, Result (Owner::*forward)(Parameters...) const,
                   std::vector<std::string> names = {}) {
  return bind_parameters<Parameters...>(std::move(module), forward, std::move(names));
}

//! The forward function of a module with a `forward(const Args&, const Kwargs&)`.
template <TakesArgsAndKwargs Module>
StageFunction bind_forward(std::shared_ptr<Module> module) {
  return [module](const value::Args& args, const value::Kwargs& kwargs) -> StageResult {
    return module->forward(args, kwargs);
  };
}

//! The forward function of any other module: it takes no keyword arguments. A `forward` that is a template or
//! overloaded takes one tensor.
template <class Module>
StageFunction bind_forward(std::shared_ptr<Module> module) {
  if constexpr (SelectsForward<Module>) {
    return detail::bind(module, &Module::forward);
  } else {
    return [module](const value::Args& args, const value::Kwargs& kwargs) {
      check_no_keywords(kwargs);
      if (args.size() != 1) wrong_argument_count(args.size(), 1);
      return StageResult(module->forward(args[0].toTensor()));
    };
  }
}

}  // namespace penstock::runtime::detail
