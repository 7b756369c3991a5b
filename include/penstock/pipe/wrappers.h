// Models that are made of others: a model with its loss as one module, and a Sequential whose layers are
// stages.
#pragma once

#include <penstock/pipe/pipe.h>

#include <memory>
#include <utility>

namespace torch::nn {
class Module;
class SequentialImpl;
}  // namespace torch::nn

namespace penstock {

//! A model and its loss function as one module, whose parameters are the model's under `module.`. Derive from
//! it with a `forward` that says how arguments, model and loss are connected. `Model` is a shared_ptr or a
//! holder of a torch::nn module. (`Base` is a parameter only so that this header needs no torch::nn.)
template <class Model, class Loss, class Base = torch::nn::Module>
class LossWrapper : public Base {
 public:
  LossWrapper(Model model, Loss loss) : module(std::move(model)), loss_fn(std::move(loss)) {
    this->register_module("module", module);
  }

  Model module;
  Loss loss_fn;
};

//! The usual connection: the loss of the model's answer to `x` and of the targets, and nothing else, is the
//! output. `pipeline()` knows that it is the loss.
template <class Model, class Loss, class Base = torch::nn::Module>
class TrivialLossWrapper : public LossWrapper<Model, Loss, Base> {
 public:
  using LossWrapper<Model, Loss, Base>::LossWrapper;
  static constexpr const char* loss_output = "output";

  at::Tensor forward(at::Tensor x, at::Tensor targets) {
    return this->loss_fn(this->module->forward(x), targets);
  }
};

//! A torch::nn::Sequential with a `pipe_split()` between each two of its layers; the layers are shared.
class PipeSequential {
 public:
  explicit PipeSequential(std::shared_ptr<torch::nn::SequentialImpl> layers) : layers_(std::move(layers)) {}

  //! From torch::nn::Sequential.
  template <class Sequential>
  static PipeSequential from_sequential(const Sequential& layers) {
    return PipeSequential(layers.ptr());
  }

  at::Tensor forward(at::Tensor input) const;
  const torch::nn::Module& module() const;

 private:
  std::shared_ptr<torch::nn::SequentialImpl> layers_;
};

//! One stage a layer, or fewer where `spec` says so.
Pipe pipeline(const PipeSequential& layers, const Args& example_args, const SplitSpec& spec = AtMarks{},
              PipeOptions options = {});

}  // namespace penstock
