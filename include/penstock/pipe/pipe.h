// Splits a model into stages. A Pipe holds the graph, its split positions and the source of its tensors; it
// loads the tensors of a stage on first use.
#pragma once

#include <penstock/graph/capture.h>
#include <penstock/graph/graph_module.h>
#include <penstock/graph/split.h>
#include <penstock/pipe/pipe_info.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/value/microbatch.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace torch::nn {
class Module;
}

namespace penstock::pipe {

//! Returns the tensors of the slots, in slot order.
using TensorSource = std::function<std::vector<at::Tensor>(const std::vector<graph::Slot>& slots)>;

//! The quantity that `Balanced` equalizes over stages: bytes of parameters, estimated operations or measured
//! time.
enum class BalanceBy { Parameters, Flops, MeasuredTime };
//! `params`, `flops` or `time`: the names on the command line.
std::string_view to_string(BalanceBy by);

//! Splits into stages of similar weight.
struct Balanced {
  int stages = 1;
  BalanceBy by = BalanceBy::Parameters;
};

//! Splits at the marks of `pipe_split()`.
struct AtMarks {};

//! Splits at modules, given by path.
using SplitPoints = std::map<std::string, graph::SplitPoint>;

//! Splits at the positions that a function of yours returns: the indices of the nodes at which stages 1, 2, …
//! start. `legal_split_positions` lists the allowed ones; others are a UsageError.
using SplitPolicy = std::function<graph::SplitPositions(const graph::Graph& graph)>;

//! How a model is split into stages.
using SplitSpec = std::variant<AtMarks, SplitPoints, Balanced, SplitPolicy>;

//! How a model is captured and split.
struct PipeOptions {
  //! The path of the output that is the loss (`output`, `output.0`, `output.loss`), if the model computes it.
  std::optional<std::string> loss_output{};
  //! How to treat parameters that several stages read.
  graph::MultiUseParameterSpec multi_use{};
  //! For captured models: allow microbatches with any number of rows (see `capture_dynamic`).
  bool dynamic_batch = false;
};

//! A model that is split into stages. Build the stages of this rank with `build_stage`.
class Pipe {
 public:
  //! `example` holds the input leaves for the measurement of BalanceBy::MeasuredTime; otherwise unused.
  Pipe(graph::Graph graph, TensorSource source, const SplitSpec& spec, PipeOptions options = {},
       const std::vector<c10::IValue>& example = {});

  int num_stages() const { return static_cast<int>(split_.stages.size()); }
  //! The unsplit graph.
  const graph::Graph& graph() const { return graph_; }
  const graph::Graph& stage_graph(StageId stage) const;
  //! The paths of the modules that ran the stage's operators, with their parents, in order of first
  //! appearance. Excludes sizes and constants that the stage recomputes.
  std::vector<std::string> stage_module_paths(StageId stage) const;
  //! The graphs of all stages and the sources of their inputs.
  const graph::SplitGraph& split() const { return split_; }
  const PipeOptions& options() const { return options_; }
  //! The nodes before which the graph is split.
  const graph::SplitPositions& split_positions() const { return split_positions_; }

  //! The module of the stage, with its tensors. The first call loads them; later calls return the same
  //! object, which the results of `make_stage_module` and `build_stage` run. With a device, moves it there.
  //! Parameters keep the names they have in the model.
  std::shared_ptr<graph::GraphModule> stage_module(StageId stage,
                                                   std::optional<at::Device> device = std::nullopt);

  //! Switches all stages, including those loaded later, to training mode (as recorded) or evaluation mode
  //! (see GraphModule::train).
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }

  //! Wraps the module of the stage for the runtime. Its arguments are the outputs of the previous stage or,
  //! for the first stage, the positional arguments of the model. Each stage takes the keyword arguments that
  //! it reads. The activations of the modules with the paths in `recomputed`, submodules included, are
  //! computed again in the backward pass; modules of other stages are ignored. Throws UsageError if the graph
  //! cannot be divided at such a module (`why_not_splittable`).
  std::shared_ptr<runtime::StageModule> make_stage_module(StageId stage,
                                                          const std::vector<std::string>& recomputed = {});
  //! The same as a stage of a pipeline whose ranks are those of `group`.
  runtime::PipelineStage build_stage(StageId stage, at::Device device, const comm::Group& group,
                                     runtime::StageOptions options = {});

  //! What the runtime needs to know about the split: skip values, tied parameters, and the loss if the model
  //! computes it; `step` then takes no target. Outputs are concatenated along the dim that grows with the
  //! batch; scalar outputs become a tensor with one element per microbatch.
  std::vector<runtime::SkipValue> skips() const;
  std::vector<runtime::SharedParameter> shared() const;
  runtime::PipelineOptions pipeline_options(runtime::PipelineOptions options = {}) const;

  //! Runs all stages in this process, each with its own autograd graph, to check a split.
  c10::IValue forward(const value::Args& args, const value::Kwargs& kwargs = {});

  //! Summarizes the split model.
  PipeInfo info() const;
  //! The stages and the values between them in Graphviz syntax.
  std::string graphviz() const;
  //! The same as an SVG image: stages in a row, arcs for skip values and tied weights.
  std::string svg() const;

 private:
  graph::Graph graph_;
  TensorSource source_;
  PipeOptions options_;
  graph::SplitPositions split_positions_;
  graph::SplitGraph split_;
  std::vector<std::shared_ptr<graph::GraphModule>> modules_;  // loaded on first use
  bool training_ = true;
  std::string size_hint_;  // error hint for inputs of the wrong size

  friend Pipe pipeline_of(const graph::ForwardFunction& forward, const graph::ModelTensors& model,
                          const value::Args& example_args, const value::Kwargs& example_kwargs,
                          const SplitSpec& spec, PipeOptions options);
};

//! The graphs of all stages, then the table of their inputs (`to_string(pipe.split())`).
std::string to_string(const Pipe& pipe);

//! Returns the named tensors of a module. A tensor with several names is listed under each.
graph::ModelTensors model_tensors(const torch::nn::Module& module);

//! Captures a forward function and splits it. The stages share memory with the model's tensors.
Pipe pipeline_of(const graph::ForwardFunction& forward, const graph::ModelTensors& model,
                 const value::Args& example_args, const value::Kwargs& example_kwargs = {},
                 const SplitSpec& spec = AtMarks{}, PipeOptions options = {});

//! Captures and splits a stage module, for example `make_stage_module(module, {"x", "mask"})`, whose
//! `forward` takes keyword arguments with these names.
Pipe pipeline(const std::shared_ptr<runtime::StageModule>& module, const value::Args& example_args,
              const value::Kwargs& example_kwargs = {}, const SplitSpec& spec = AtMarks{},
              PipeOptions options = {});

//! Captures and splits a torch::nn module. Its `forward` may take any number of arguments, or `(const Args&,
//! const Kwargs&)` to receive keyword arguments; a template or overloaded `forward` takes one tensor. The
//! default of `options.loss_output` is the static member `loss_output` of the module's class, if it has one.
template <runtime::TorchModule Module>
Pipe pipeline(const std::shared_ptr<Module>& module, const value::Args& example_args,
              const value::Kwargs& example_kwargs = {}, const SplitSpec& spec = AtMarks{},
              PipeOptions options = {}) {
  const std::shared_ptr<runtime::StageModule> model = runtime::make_stage_module(module);
  const graph::ForwardFunction forward = [model](const value::Args& args, const value::Kwargs& kwargs) {
    return model->forward(args, kwargs).output;
  };
  if constexpr (requires { std::string(Module::loss_output); }) {
    if (!options.loss_output) options.loss_output = Module::loss_output;
  }
  return pipeline_of(forward, model_tensors(*module), example_args, example_kwargs, spec, std::move(options));
}

//! Captures and splits a module in a TORCH_MODULE holder.
template <runtime::ModuleHolder Holder>
Pipe pipeline(const Holder& module, const value::Args& example_args, const value::Kwargs& example_kwargs = {},
              const SplitSpec& spec = AtMarks{}, PipeOptions options = {}) {
  return pipeline(module.ptr(), example_args, example_kwargs, spec, std::move(options));
}

//! Imports and splits an archive written by `torch.export.save`. `example`: see the Pipe constructor.
Pipe load_pt2(const std::filesystem::path& file, const SplitSpec& spec = AtMarks{}, PipeOptions options = {},
              const std::vector<c10::IValue>& example = {});

}  // namespace penstock::pipe
