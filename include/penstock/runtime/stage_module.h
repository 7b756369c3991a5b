// The computation of a stage: a torch::nn module, a function with parameters, or a captured graph. The
// runtime accesses models only through this interface.
#pragma once

#include <penstock/runtime/detail/bind_forward.h>
#include <penstock/runtime/module_call.h>
#include <penstock/runtime/stage_result.h>
#include <penstock/value/microbatch.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
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
  //! Whether random operations draw from libtorch's default generator, in the order in which the rank runs
  //! them, instead of from generators by seed, step, stage and microbatch (random.h).
  virtual bool uses_default_generator() const { return false; }
  //! Whether a backward pass may add to the gradient of a parameter several times, because modules that are
  //! recomputed separately share it. Data parallelism then reduces gradients after the last backward pass
  //! instead of during it.
  virtual bool accumulates_repeatedly() const { return false; }
  //! The names of the keyword arguments that it takes; nullopt if it accepts any.
  virtual std::optional<std::set<std::string>> keywords() const { return std::nullopt; }
  //! Called when parameters and inputs are converted to another floating-point dtype than the module was
  //! captured or exported with.
  virtual void allow_other_float_dtypes() {}
  //! The meshes of its distributed parameters, without duplicates.
  virtual std::vector<tensor::DeviceMesh> meshes() const;
};

//! Makes a stage module from a function. Its parameters and its mode are those of `owner` (none if null). It
//! accepts any keyword argument, or only those in `keywords`.
std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<torch::nn::Module> owner,
                                               StageFunction forward);
std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<torch::nn::Module> owner,
                                               StageFunction forward, const std::set<std::string>& keywords);

//! Makes a stage module from a torch::nn module. A `forward(const Args&, const Kwargs&)` gets the arguments
//! of the stage unchanged; any other `forward` gets them one by one. A `forward` that is a template or
//! overloaded (as in Sequential) gets one tensor, unless the module declares `static constexpr bool
//! takes_args_and_kwargs = true` because one of the overloads is `forward(const Args&, const Kwargs&)`.
template <TorchModule Module>
std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<Module> module) {
  const std::shared_ptr<torch::nn::Module> owner = module;
  if constexpr (detail::TakesArgsAndKwargs<Module>)
    return make_stage_module(owner, detail::bind_forward(module));
  else
    return make_stage_module(owner, detail::bind_forward(module), detail::no_keywords());
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
