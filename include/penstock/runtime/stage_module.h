// The computation of a stage: a torch::nn module, a function with parameters, or a captured graph. The
// runtime accesses models only through this interface.
#pragma once

#include <penstock/runtime/module_call.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace penstock::tensor {
class DeviceMesh;
}

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

//! The interface through which the runtime runs a stage.
class StageModule {
 public:
  virtual ~StageModule() = default;

  //! Runs the stage on one microbatch.
  virtual StageResult forward(const value::Args& args, const value::Kwargs& kwargs) = 0;
  //! The parameters, by name.
  virtual std::vector<value::NamedTensor> parameters() const = 0;
  //! The buffers, by name.
  virtual std::vector<value::NamedTensor> buffers() const = 0;
  //! Moves parameters and buffers in place: their tensors stay the same objects.
  virtual void to(at::Device device) = 0;
  //! Sets training or evaluation mode, as torch::nn::Module::train does.
  virtual void train(bool on = true) = 0;
  void eval() { train(false); }
  //! Whether the module is in training mode.
  virtual bool is_training() const = 0;
  //! Sets evaluation mode. The returned function restores the mode of every submodule.
  virtual std::function<void()> enter_eval();
  //! The names of the keyword arguments that it takes; nullopt if it accepts any.
  virtual std::optional<std::set<std::string>> keywords() const { return std::nullopt; }
  //! The meshes of its distributed parameters, without duplicates.
  virtual std::vector<tensor::DeviceMesh> meshes() const;
};

//! The forward function of a stage.
using StageFunction = std::function<StageResult(const value::Args& args, const value::Kwargs& kwargs)>;

//! Makes a stage module from a function. Its parameters and its mode are those of `owner` (none if null). It
//! accepts any keyword argument, or only those in `keywords`.
std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<torch::nn::Module> owner,
                                               StageFunction forward);
std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<torch::nn::Module> owner,
                                               StageFunction forward, const std::set<std::string>& keywords);

namespace detail {

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
StageFunction bind_forward(std::shared_ptr<Module> module, Forward forward, std::vector<std::string> names) {
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
  return bind_forward<Parameters...>(std::move(module), forward, std::move(names));
}
template <class Module, class Owner, class Result, class... Parameters>
StageFunction bind(std::shared_ptr<Module> module, Result (Owner::*forward)(Parameters...) const,
                   std::vector<std::string> names = {}) {
  return bind_forward<Parameters...>(std::move(module), forward, std::move(names));
}

//! A torch::nn module whose `forward` is neither a template nor overloaded.
template <class Type>
concept ModuleWithOneForward = TorchModule<Type> && requires {
  &Type::forward;
};

}  // namespace detail

//! Makes a stage module from a torch::nn module. A `forward(const Args&, const Kwargs&)` gets the arguments
//! of the stage unchanged; any other `forward` gets them one by one. A `forward` that is a template or
//! overloaded (as in Sequential) gets one tensor, unless the module declares `static constexpr bool
//! takes_args_and_kwargs = true` because one of the overloads is `forward(const Args&, const Kwargs&)`.
template <TorchModule Module>
std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<Module> module) {
  const std::shared_ptr<torch::nn::Module> owner = module;
  constexpr bool declared = requires {
    requires Module::takes_args_and_kwargs;
  };
  if constexpr (!declared && !requires { &Module::forward; }) {
    const StageFunction forward = [module](const value::Args& args, const value::Kwargs& kwargs) {
      detail::check_no_keywords(kwargs);
      if (args.size() != 1) detail::wrong_argument_count(args.size(), 1);
      return StageResult(module->forward(args[0].toTensor()));
    };
    return make_stage_module(owner, forward, detail::no_keywords());
  } else if constexpr (requires(const value::Args& args, const value::Kwargs& kwargs) {
                         module->forward(args, kwargs);
                       }) {
    return make_stage_module(owner,
                             [module](const value::Args& args, const value::Kwargs& kwargs) -> StageResult {
                               return module->forward(args, kwargs);
                             });
  } else {
    return make_stage_module(owner, detail::bind(module, &Module::forward), detail::no_keywords());
  }
}

//! Makes a stage module that takes keyword arguments: `parameters` lists the parameter names of its `forward`
//! in order. Positional arguments fill the first parameters, keyword arguments the others by name. A
//! std::optional parameter without an argument is empty.
template <detail::ModuleWithOneForward Module>
std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<Module> module,
                                               const std::vector<std::string>& parameters) {
  const std::shared_ptr<torch::nn::Module> owner = module;
  return make_stage_module(owner, detail::bind(module, &Module::forward, parameters),
                           std::set<std::string>(parameters.begin(), parameters.end()));
}

//! Overloads for TORCH_MODULE holders.
template <ModuleHolder Holder>
std::shared_ptr<StageModule> make_stage_module(const Holder& holder) {
  return make_stage_module(holder.ptr());
}
template <ModuleHolder Holder>
std::shared_ptr<StageModule> make_stage_module(const Holder& holder,
                                               const std::vector<std::string>& parameters) {
  return make_stage_module(holder.ptr(), parameters);
}

//! A module that is not a StageModule yet: a shared_ptr to a torch::nn module, or a holder.
template <class Type>
concept UnwrappedModule = !std::is_convertible_v<Type, std::shared_ptr<StageModule>>;

}  // namespace penstock::runtime
