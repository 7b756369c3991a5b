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
  //! Parameters that several stages read.
  MultiUseParamSpec multi_use{};
  //! Of captured models: microbatches may have any number of rows (see `capture_dynamic`).
  bool dynamic_batch = false;
};

class Pipe {
 public:
  //! `example` are the leaves that a measurement runs on; needed for BalanceBy::MeasuredTime only.
  Pipe(Graph graph, TensorSource source, const SplitSpec& spec, PipeOptions options = {},
       const std::vector<c10::IValue>& example = {});

  int num_stages() const { return static_cast<int>(split_.stages.size()); }
  const Graph& graph() const { return graph_; }
  const Graph& stage_graph(int stage) const;
  //! The paths of the modules that ran the stage's operators, in order of first appearance, parents included.
  //! Sizes and constants that it computes again, because the stages that made them do not send them, do not
  //! count.
  std::vector<std::string> stage_modules(int stage) const;
  const SplitGraph& split() const { return split_; }
  const PipeOptions& options() const { return options_; }
  //! The nodes before which the graph was cut.
  const Cuts& cuts() const { return cuts_; }

  //! The stage with its tensors, loaded on the first call and the same object ever after: what is switched,
  //! sharded or moved here is what `stage_module` and `build_stage` run. With a device, it is moved there.
  //! Parameters keep their names in the whole model.
  std::shared_ptr<GraphModule> get_stage_module(int stage,
                                                std::optional<c10::Device> device = std::nullopt) const;

  //! Switches all stages between training mode, as recorded, and evaluation mode (GraphModule::train); those
  //! that are loaded later start in it.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }

  //! The stage as the runtime runs it: its arguments are what the stage before gives, or for the first stage
  //! the model's positional ones; keyword arguments of the model are taken by the stages that read them.
  std::shared_ptr<StageModule> stage_module(int stage) const;
  PipelineStage build_stage(int stage, at::Device device, const Group& group,
                            StageOptions options = {}) const;

  //! What a schedule must know of the whole: values that skip stages, parameters in several stages, and, if
  //! the model computes it, the loss: `step` then takes no target. Outputs are joined along the dim
  //! that grows with the batch; those that are one number come as one for each microbatch.
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
  //! The same as a picture: stages in a row, arcs for values that skip stages and for tied weights.
  std::string svg() const;

 private:
  Graph graph_;
  TensorSource source_;
  PipeOptions options_;
  Cuts cuts_;
  SplitGraph split_;
  mutable std::vector<std::shared_ptr<GraphModule>> modules_;
  bool training_ = true;
  std::string size_hint_;  // of inputs whose sizes the graph was not made for

  friend Pipe pipeline_of(const ForwardFunction& forward, const ModelTensors& model, const Args& example_args,
                          const Kwargs& example_kwargs, const SplitSpec& spec, PipeOptions options);
};

//! The names and tensors of a module; a tensor that stands under several names is listed with each.
ModelTensors model_tensors(const torch::nn::Module& module);

//! Captures a forward and splits it. The stages share the model's tensors.
Pipe pipeline_of(const ForwardFunction& forward, const ModelTensors& model, const Args& example_args,
                 const Kwargs& example_kwargs = {}, const SplitSpec& spec = AtMarks{},
                 PipeOptions options = {});

//! The same for a stage module, for example `make_stage_module(module, {"x", "mask"})`, whose forward takes
//! keyword arguments by these names.
Pipe pipeline(const std::shared_ptr<StageModule>& module, const Args& example_args,
              const Kwargs& example_kwargs = {}, const SplitSpec& spec = AtMarks{}, PipeOptions options = {});

//! The same for a torch::nn module. Its forward may take any number of arguments, or `(const Args&, const
//! Kwargs&)` to be given keyword arguments; one that is a template or overloaded takes one tensor. Where the
//! module's class says which output is the loss (`loss_output`), the options need not.
template <class Module>
requires requires(Module& module) {
  module.named_parameters();
}
Pipe pipeline(const std::shared_ptr<Module>& module, const Args& example_args,
              const Kwargs& example_kwargs = {}, const SplitSpec& spec = AtMarks{},
              PipeOptions options = {}) {
  const std::shared_ptr<StageModule> whole = make_stage_module(module);
  const ForwardFunction forward = [whole](const Args& args, const Kwargs& kwargs) {
    return whole->forward(args, kwargs).output;
  };
  if constexpr (requires { std::string(Module::loss_output); }) {
    if (!options.loss_output) options.loss_output = Module::loss_output;
  }
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

//! An archive of Python's `torch.export.save`, split. `example` as for the constructor of Pipe.
Pipe load_pt2(const std::string& file, const SplitSpec& spec = AtMarks{}, PipeOptions options = {},
              const std::vector<c10::IValue>& example = {});

}  // namespace penstock
