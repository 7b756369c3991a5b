// What a stage computes, whatever it is made of: a torch::nn module, a function with parameters, or later a
// traced graph. The runtime knows models only through this interface.
#pragma once

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

namespace penstock {

class DeviceMesh;

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

//! What a forward gives: the output (the next stage's arguments, one for each item of a tuple, or the
//! pipeline's output), and the values that later stages take by name (see SkipValue).
struct StageResult {
  c10::IValue output;
  Kwargs skips;

  StageResult() = default;
  template <class T>
  requires(std::is_constructible_v<c10::IValue, T> && !std::is_same_v<std::decay_t<T>, StageResult>)
      StageResult(T&& value)  // NOLINT: a plain value is a result, and a result is not one
      : output(std::forward<T>(value)) {}
  StageResult(c10::IValue value, Kwargs named) : output(std::move(value)), skips(std::move(named)) {}
};

class StageModule {
 public:
  virtual ~StageModule() = default;

  virtual StageResult forward(const Args& args, const Kwargs& kwargs) = 0;
  virtual std::vector<NamedTensor> parameters() const = 0;
  virtual std::vector<NamedTensor> buffers() const = 0;
  //! Moves parameters and buffers in place: their tensors stay the same objects.
  virtual void to(at::Device device) = 0;
  //! Switches between training mode and evaluation mode, as torch::nn::Module::train does.
  virtual void train(bool on = true) = 0;
  void eval() { train(false); }
  virtual bool is_training() const = 0;
  //! Switches to evaluation mode; the function that is returned restores the mode of every submodule.
  virtual std::function<void()> enter_eval();
  //! The keyword arguments it takes; nothing if it takes whatever it is given.
  virtual std::optional<std::set<std::string>> keywords() const { return std::nullopt; }
  //! The meshes that its distributed parameters lie on, each once.
  virtual std::vector<DeviceMesh> meshes() const;
};

using StageFunction = std::function<StageResult(const Args& args, const Kwargs& kwargs)>;

//! A function whose parameters and mode are those of `owner` (none if null). It takes whatever keyword
//! arguments it is given, or only those named.
std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<torch::nn::Module> owner,
                                               StageFunction forward);
std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<torch::nn::Module> owner,
                                               StageFunction forward, const std::set<std::string>& keywords);

namespace detail {

//! C++ parameters have no names to be given by.
const std::set<std::string>& no_keywords();
//! How a module comes to take keyword arguments, for errors.
const char* keywords_hint();
[[noreturn]] void wrong_argument_count(std::size_t given, std::size_t wanted);
//! UsageError if there are any.
void check_no_keywords(const Kwargs& kwargs);

//! The arguments of a forward in the order of its parameters: first those given by position, then those given
//! by name. None for one that is missing if it is `optional`. UsageError for what is missing, given twice or
//! unknown.
Args ordered_arguments(const Args& args, const Kwargs& kwargs, const std::vector<std::string>& names,
                       const std::vector<bool>& optional);
//! UsageError unless there are as many names as parameters, each once.
void check_parameter_names(const std::vector<std::string>& names, std::size_t parameters);

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

//! module->forward(T0, T1, …) as a stage function: arguments are converted to its parameters' types.
template <class... Parameters, class Module, class Forward>
StageFunction bind_forward(std::shared_ptr<Module> module, Forward forward, std::vector<std::string> names) {
  const auto call = [module = std::move(module), forward](const Args& args) {
    if (args.size() != sizeof...(Parameters)) wrong_argument_count(args.size(), sizeof...(Parameters));
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return StageResult(((*module).*forward)(args[I].template to<std::decay_t<Parameters>>()...));
    }
    (std::index_sequence_for<Parameters...>());
  };
  if (names.empty()) {
    return [call](const Args& args, const Kwargs& kwargs) {
      check_no_keywords(kwargs);
      return call(args);
    };
  }
  check_parameter_names(names, sizeof...(Parameters));
  return [call, names = std::move(names)](const Args& args, const Kwargs& kwargs) {
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

}  // namespace detail

//! A module of torch::nn. Its `forward` is called with a stage's arguments: `forward(const Args&, const
//! Kwargs&)` gets them as they are, any other `forward` one by one; one that is a template or overloaded (as
//! of Sequential) gets one tensor.
template <class Module>
requires std::is_base_of_v<torch::nn::Module, Module> std::shared_ptr<StageModule> make_stage_module(
    std::shared_ptr<Module> module) {
  const std::shared_ptr<torch::nn::Module> owner = module;
  if constexpr (!requires { &Module::forward; }) {
    const StageFunction forward = [module](const Args& args, const Kwargs& kwargs) {
      detail::check_no_keywords(kwargs);
      if (args.size() != 1) detail::wrong_argument_count(args.size(), 1);
      return StageResult(module->forward(args[0].toTensor()));
    };
    return make_stage_module(owner, forward, detail::no_keywords());
  } else if constexpr (requires(const Args& args, const Kwargs& kwargs) { module->forward(args, kwargs); }) {
    return make_stage_module(owner, [module](const Args& args, const Kwargs& kwargs) -> StageResult {
      return module->forward(args, kwargs);
    });
  } else {
    return make_stage_module(owner, detail::bind(module, &Module::forward), detail::no_keywords());
  }
}

//! The same for a module whose forward takes keyword arguments: `parameters` names what its forward takes, in
//! order. A stage's positional arguments fill the first of them, keyword arguments the others by name; a
//! std::optional that is not given is empty.
template <class Module>
requires(std::is_base_of_v<torch::nn::Module, Module>&& requires {
  &Module::forward;
}) std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<Module> module,
                                                  const std::vector<std::string>& parameters) {
  const std::shared_ptr<torch::nn::Module> owner = module;
  return make_stage_module(owner, detail::bind(module, &Module::forward, parameters),
                           std::set<std::string>(parameters.begin(), parameters.end()));
}

//! The same for the holders that TORCH_MODULE makes (torch::nn::Linear, …).
template <class Holder>
requires requires(const Holder& holder) {
  holder.ptr()->parameters();
}
std::shared_ptr<StageModule> make_stage_module(const Holder& holder) {
  return make_stage_module(holder.ptr());
}
template <class Holder>
requires requires(const Holder& holder) {
  holder.ptr()->parameters();
}
std::shared_ptr<StageModule> make_stage_module(const Holder& holder,
                                               const std::vector<std::string>& parameters) {
  return make_stage_module(holder.ptr(), parameters);
}

}  // namespace penstock
