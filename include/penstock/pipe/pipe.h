// From a whole model to stages: a graph, where it is cut, and where its tensors come from. Only the stages
// that are asked for get their tensors.
#pragma once

#include <penstock/graph/capture.h>
#include <penstock/graph/module.h>
#include <penstock/graph/split.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/value/microbatch.h>
#include <penstock/value/pipe_info.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace torch::nn {
class Module;
}

namespace penstock {

//! Gives the tensors of the slots, in their order.
using TensorSource = std::function<std::vector<at::Tensor>(const std::vector<Slot>& slots)>;

enum class BalanceBy { Parameters, Flops, MeasuredTime };

//! Stages of about equal weight.
struct Balanced {
  int stages = 1;
  BalanceBy by = BalanceBy::Parameters;
};

//! At the marks of `pipe_split()`.
struct AtMarks {};

//! By module path.
using SplitPoints = std::map<std::string, SplitPoint>;

//! Any rule of the user's.
using SplitPolicy = std::function<Cuts(const Graph& graph)>;

using SplitSpec = std::variant<AtMarks, SplitPoints, Balanced, SplitPolicy>;

struct PipeOptions {
  //! The output that is the loss (`output`, `output.0`, `output.loss`), if the model computes it.
  std::optional<std::string> loss_output{};
};

class Pipe {
 public:
  //! `example` are the leaves that a measurement runs on; needed for BalanceBy::MeasuredTime only.
  Pipe(Graph graph, TensorSource source, const SplitSpec& spec, PipeOptions options = {},
       const std::vector<c10::IValue>& example = {});

  int num_stages() const { return static_cast<int>(split_.stages.size()); }
  const Graph& graph() const { return graph_; }
  const Graph& stage_graph(int stage) const;
  const SplitGraph& split() const { return split_; }
  const PipeOptions& options() const { return options_; }

  //! The stage with its tensors, loaded on the first call. Parameters keep their names in the whole model.
  std::shared_ptr<GraphModule> get_stage_module(int stage,
                                                std::optional<c10::Device> device = std::nullopt) const;

  //! The stage as the runtime runs it: its arguments are what the stage before gives, or for the first stage
  //! the model's positional ones; keyword arguments of the model are taken by the stages that read them.
  std::shared_ptr<StageModule> stage_module(int stage) const;
  PipelineStage build_stage(int stage, at::Device device, const Group& group,
                            StageOptions options = {}) const;

  //! What a schedule must know of the whole: values that skip stages, parameters in several stages, and the
  //! loss if the model computes it.
  std::vector<SkipValue> skips() const;
  std::vector<SharedParameter> shared() const;
  PipelineOptions schedule_options(PipelineOptions options = {}) const;

  //! Runs all stages in this process, each cut off from the others' autograd graphs, to check a split.
  c10::IValue forward(const Args& args, const Kwargs& kwargs = {}) const;

  PipeInfo info() const;
  //! Every stage's graph as text.
  std::string print_readable() const;
  //! Where each stage's inputs come from, and which tensors several stages hold.
  std::string input_table() const { return split_.table(); }
  //! Stages and the values that cross them, for Graphviz.
  std::string graphviz() const;

 private:
  Graph graph_;
  TensorSource source_;
  PipeOptions options_;
  SplitGraph split_;
  mutable std::vector<std::shared_ptr<GraphModule>> modules_;
};

//! The names and tensors of a module; a tensor that stands under several names is listed with each.
ModelTensors model_tensors(const torch::nn::Module& module);

//! Captures a forward and splits it. The stages share the model's tensors.
Pipe pipeline_of(const ForwardFunction& forward, const ModelTensors& model, const Args& example_args,
                 const Kwargs& example_kwargs = {}, const SplitSpec& spec = AtMarks{},
                 PipeOptions options = {});

//! The same for a torch::nn module whose forward takes one tensor, or `(const Args&, const Kwargs&)`.
template <class Module>
requires requires(Module& module) {
  module.named_parameters();
}
Pipe pipeline(const std::shared_ptr<Module>& module, const Args& example_args,
              const Kwargs& example_kwargs = {}, const SplitSpec& spec = AtMarks{},
              PipeOptions options = {}) {
  const ForwardFunction forward = [module](const Args& args, const Kwargs& kwargs) -> c10::IValue {
    if constexpr (requires { c10::IValue(module->forward(args, kwargs)); }) {
      return module->forward(args, kwargs);
    } else {
      return module->forward(args.at(0).toTensor());
    }
  };
  return pipeline_of(forward, model_tensors(*module), example_args, example_kwargs, spec, std::move(options));
}

//! The same for the holders that TORCH_MODULE makes.
template <class Holder>
requires requires(const Holder& holder) {
  holder.ptr()->named_parameters();
}
Pipe pipeline(const Holder& module, const Args& example_args, const Kwargs& example_kwargs = {},
              const SplitSpec& spec = AtMarks{}, PipeOptions options = {}) {
  return pipeline(module.ptr(), example_args, example_kwargs, spec, std::move(options));
}

//! An archive of Python's `torch.export.save`, split.
Pipe load_pt2(const std::string& file, const SplitSpec& spec = AtMarks{}, PipeOptions options = {});

}  // namespace penstock
