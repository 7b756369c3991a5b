// A model exported by Python as a torch::nn module: the successor of torch::jit::load for inference and
// training. This header includes torch::nn; `penstock/penstock.h` does not include it.
#pragma once

#include <penstock/graph/error.h>
#include <penstock/graph/ir.h>
#include <penstock/value/microbatch.h>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::graph {

//! A graph as a torch::nn module. Its submodules, parameters and buffers have the names that they have in
//! Python. `named_parameters()` lists a tied parameter once, as in Python, so an optimizer updates it once.
//! `train()` and `eval()` apply to the operators of the module on which they are called, as in Python: a
//! submodule in evaluation mode has no dropout and fixed batch norm statistics. A model that was exported in
//! evaluation mode stays in it. `forward` may run on several threads, unless a buffer is updated.
class ExportedModuleImpl : public torch::nn::Module {
 public:
  //! For `make_stage_module`, which passes arguments unchanged.
  static constexpr bool takes_args_and_kwargs = true;

  //! `tensors` holds one tensor per slot, in slot order. They are registered, not copied.
  ExportedModuleImpl(Graph graph, std::vector<at::Tensor> tensors);
  ~ExportedModuleImpl() override;

  //! Runs the model on positional tensors. Throws UsageError if the model returns something other than one
  //! tensor.
  template <std::convertible_to<at::Tensor>... Tensors>
  at::Tensor forward(const Tensors&... tensors) {
    return only_tensor(forward(value::Args{c10::IValue(static_cast<const at::Tensor&>(tensors))...}));
  }

  //! Runs the model and returns its output in the structure that it has in Python. Throws UsageError or
  //! ShapeError, naming the argument, if the arguments do not match those of the export.
  c10::IValue forward(const value::Args& args, const value::Kwargs& kwargs = {});

  //! Runs the model and returns the tensors of its output by path: `output`, `output.0`, `output.logits`.
  std::map<std::string, at::Tensor> forward_named(const value::Args& args, const value::Kwargs& kwargs = {});
  //! Overload for positional tensors.
  template <std::convertible_to<at::Tensor>... Tensors>
  std::map<std::string, at::Tensor> forward_named(const Tensors&... tensors) {
    return forward_named(value::Args{c10::IValue(static_cast<const at::Tensor&>(tensors))...});
  }

  //! The tensors of Python's `state_dict()`: a tied parameter under each of its names, and no buffers that
  //! Python does not save.
  torch::OrderedDict<std::string, at::Tensor> state_dict() const;

  //! The names of the tensors and numbers that `forward` takes, in order: the parameters of Python's
  //! `forward`, or paths such as `batch.mask` if an argument is a dict.
  std::vector<std::string> input_names() const;

  //! The graph that `forward` runs.
  const Graph& graph() const;

  //! A deep copy with the same modes. Tensors that share memory here share memory in the copy.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  //! A dtype applies to floating-point parameters and buffers, as in Python, and to the inputs that `forward`
  //! expects. Dtypes recorded in operators do not change; if they conflict, `forward` throws an Error that
  //! names the operator.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  void pretty_print(std::ostream& stream) const override;

 private:
  friend struct Access;
  struct Impl;

  at::Tensor only_tensor(const c10::IValue& output) const;
  void convert(std::optional<torch::Device> device, std::optional<torch::Dtype> dtype, bool non_blocking);

  std::unique_ptr<Impl> impl_;
};

//! A holder, like torch::nn::Linear: `model->parameters()`, `model(x)`. (TORCH_MODULE does not support
//! overloads of `forward`.)
class ExportedModule : public torch::nn::ModuleHolder<ExportedModuleImpl> {
 public:
  using torch::nn::ModuleHolder<ExportedModuleImpl>::ModuleHolder;
  using Impl = ExportedModuleImpl;

  template <std::convertible_to<at::Tensor>... Tensors>
  at::Tensor operator()(const Tensors&... tensors) {
    return get()->forward(tensors...);
  }
  c10::IValue operator()(const value::Args& args, const value::Kwargs& kwargs = {}) {
    return get()->forward(args, kwargs);
  }
};

//! Loads an archive written by Python's `torch.export.save`, with its weights. Throws StorageError if it
//! cannot be opened or read, UsageError if it contains something that a graph cannot represent, and
//! ParseError if it is damaged or not such an archive.
ExportedModule load_module(const std::filesystem::path& file,
                           std::optional<torch::Device> device = std::nullopt);

}  // namespace penstock::graph
