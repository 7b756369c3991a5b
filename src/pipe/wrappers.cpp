// A Sequential, layer by layer, with marks between.
#include <penstock/base/error.h>
#include <penstock/pipe/wrappers.h>

#include <torch/nn/modules/container/sequential.h>

namespace penstock {

at::Tensor PipeSequential::forward(at::Tensor input) const {
  const auto children = layers_->named_children();
  std::size_t i = 0;
  for (torch::nn::AnyModule& layer : *layers_) {
    if (i > 0) pipe_split();
    const ModuleScope scope(children[i++].key());
    input = layer.forward(input);
  }
  return input;
}

const torch::nn::Module& PipeSequential::module() const {
  return *layers_;
}

Pipe pipeline(const PipeSequential& layers, const Args& example_args, const SplitSpec& spec,
              PipeOptions options) {
  const ForwardFunction forward = [layers](const Args& args, const Kwargs&) {
    if (args.size() != 1) throw UsageError("a Sequential takes one argument");
    return c10::IValue(layers.forward(args[0].toTensor()));
  };
  return pipeline_of(forward, model_tensors(layers.module()), example_args, {}, spec, std::move(options));
}

}  // namespace penstock
