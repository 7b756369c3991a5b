// Runs a Sequential layer by layer, with a split mark between layers.
#include <penstock/base/error.h>
#include <penstock/pipe/wrappers.h>

#include <torch/nn/modules/container/sequential.h>

namespace penstock::pipe {

at::Tensor PipeSequential::forward(at::Tensor input) const {
  const auto children = layers_->named_children();
  std::size_t i = 0;
  for (torch::nn::AnyModule& layer : *layers_) {
    if (i > 0) graph::pipe_split();
    const graph::ModuleScope scope(children[i++].key());
    input = layer.forward(input);
  }
  return input;
}

const torch::nn::Module& PipeSequential::module() const {
  return *layers_;
}

Pipe pipeline(const PipeSequential& layers, const value::Args& example_args, const SplitSpec& spec,
              PipeOptions options) {
  const graph::ForwardFunction forward = [layers](const value::Args& args, const value::Kwargs&) {
    if (args.size() != 1) throw UsageError("a Sequential takes one argument");
    return c10::IValue(layers.forward(args[0].toTensor()));
  };
  return pipeline_of(forward, model_tensors(layers.module()), example_args, {}, spec, std::move(options));
}

}  // namespace penstock::pipe
