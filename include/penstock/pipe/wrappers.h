// Wrappers that combine a model with its loss, and a Sequential whose layers become stages.
#pragma once

#include <penstock/pipe/pipe.h>

#include <memory>
#include <utility>

namespace torch::nn {
class Module;
class SequentialImpl;
}  // namespace torch::nn

namespace penstock::pipe {

//! Combines a model and its loss function into one module. Parameter names get the prefix `module.` here.
//! Derive from it and define a `forward` that connects arguments, model and loss. `Model` is a shared_ptr or
//! holder of a torch::nn module. `Base` is a template parameter only to avoid including torch::nn in this
//! header.
template <class Model, class Loss, class Base = torch::nn::Module>
class LossWrapper : public Base {
 public:
  LossWrapper(Model model, Loss loss) : module(std::move(model)), loss_fn(std::move(loss)) {
    this->register_module("module", module);
  }

  Model module;
  Loss loss_fn;
};

//! Returns `loss(model(x), targets)` as the only output. `pipeline()` treats this output as the loss.
template <class Model, class Loss, class Base = torch::nn::Module>
class TrivialLossWrapper : public LossWrapper<Model, Loss, Base> {
 public:
  using LossWrapper<Model, Loss, Base>::LossWrapper;
  static constexpr const char* loss_output = "output";

  at::Tensor forward(at::Tensor x, at::Tensor targets) {
    return this->loss_fn(this->module->forward(x), targets);
  }
};

//! A torch::nn::Sequential with a `pipe_split()` between consecutive layers. Shares the layers.
class PipeSequential {
 public:
  explicit PipeSequential(std::shared_ptr<torch::nn::SequentialImpl> layers) : layers_(std::move(layers)) {}

  //! `layers` is a torch::nn::Sequential.
  template <class Sequential>
  static PipeSequential from_sequential(const Sequential& layers) {
    return PipeSequential(layers.ptr());
  }

  //! Runs the layers, each in a ModuleScope of its name, with a `pipe_split()` between them.
  at::Tensor forward(at::Tensor input) const;
  //! The Sequential itself.
  const torch::nn::Module& module() const;

 private:
  std::shared_ptr<torch::nn::SequentialImpl> layers_;
};

//! Creates one stage per layer by default; `spec` may select fewer stages.
Pipe pipeline(const PipeSequential& layers, const value::Args& example_args,
              const SplitSpec& spec = AtMarks{}, PipeOptions options = {});

}  // namespace penstock::pipe
