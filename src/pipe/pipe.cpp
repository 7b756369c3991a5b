// Splits models, loads stages on demand, and runs all stages in one process.
#include "base/text.h"
#include "graph/run/node_profile.h"
#include "pipe/balance.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/pt2.h>
#include <penstock/pipe/pipe.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <optional>

namespace penstock::pipe {
namespace {

using c10::IValue;

//! The device of the example, where times are measured; nullopt for the CPU.
std::optional<at::Device> device_of(const std::vector<IValue>& example) {
  for (const IValue& value : example) {
    if (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_cpu())
      return value.toTensor().device();
  }
  return std::nullopt;
}

graph::SplitPositions split_positions_of(const graph::Graph& graph, const SplitSpec& spec,
                                         const TensorSource& source, const std::vector<IValue>& example) {
  if (std::holds_alternative<AtMarks>(spec)) return split_at_marks(graph);
  if (const auto* points = std::get_if<SplitPoints>(&spec)) return split_at_modules(graph, *points);
  if (const auto* policy = std::get_if<SplitPolicy>(&spec)) return (*policy)(graph);
  const auto& [stages, by] = std::get<Balanced>(spec);
  switch (by) {
    case BalanceBy::Parameters:
      return balanced_split(graph, stages, parameter_weights(graph));
    case BalanceBy::Flops:
      return balanced_split(graph, stages, flop_weights(graph));
    case BalanceBy::MeasuredTime:
      if (example.size() != graph.inputs.size()) {
        throw UsageError("BalanceBy::MeasuredTime needs one example value per input", {},
                         "pass `example`, or balance by parameters");
      }
      return balanced_split(
          graph, stages,
          profile_nodes(graph::GraphModule(graph, source(graph.slots), device_of(example)), example));
  }
  return {};
}

//! Detaches a stage input from the autograd graph of the stage that produced it.
IValue detached(const IValue& value) {
  const at::Tensor& tensor = value.toTensor();
  return tensor.detach().set_requires_grad(tensor.requires_grad());
}

}  // namespace

std::string_view to_string(BalanceBy by) {
  switch (by) {
    case BalanceBy::Parameters:
      return "params";
    case BalanceBy::Flops:
      return "flops";
    case BalanceBy::MeasuredTime:
      return "time";
  }
  return "";
}

Pipe::Pipe(graph::Graph graph, TensorSource source, const SplitSpec& spec, PipeOptions options,
           const std::vector<IValue>& example)
    : graph_(std::move(graph)),
      source_(std::move(source)),
      options_(std::move(options)),
      split_positions_(split_positions_of(graph_, spec, source_, example)),
      split_(split_graph(graph_, split_positions_, options_.multi_use)),
      modules_(split_.stages.size()) {
  const std::vector<std::string> paths = graph_.output_paths();
  if (options_.loss_output && std::find(paths.begin(), paths.end(), *options_.loss_output) == paths.end()) {
    throw UsageError("the model has no output " + quote(*options_.loss_output), {},
                     "its outputs are " + join(paths, ", "));
  }
}

const graph::Graph& Pipe::stage_graph(StageId stage) const {
  if (stage.value < 0 || stage.value >= num_stages()) {
    throw UsageError(str_cat("stage ", stage.value, " does not exist; number of stages: ", num_stages()));
  }
  return split_.stage(stage).graph;
}

std::vector<std::string> Pipe::stage_module_paths(StageId stage) const {
  const std::size_t s = stage.index();
  stage_graph(stage);  // throws if the stage does not exist
  const auto at = [this](std::size_t node) {
    return graph_.nodes.begin() + static_cast<std::ptrdiff_t>(node);
  };
  graph::Graph nodes_of_stage;
  const auto& starts = split_positions_;
  nodes_of_stage.nodes.assign(at(s == 0 ? 0 : starts[s - 1]),
                              at(s < starts.size() ? starts[s] : graph_.nodes.size()));
  return module_paths(nodes_of_stage);
}

std::shared_ptr<graph::GraphModule> Pipe::stage_module(StageId stage, std::optional<at::Device> device) {
  const graph::Graph& graph = stage_graph(stage);
  auto& module = modules_[stage.index()];
  if (!module) {
    std::vector<at::Tensor> tensors = source_(graph.slots);
    // Stages that share a tensor each get their own copy, even in one process: a stage can then be moved
    // independently, and the runtime sums the gradients of parameters.
    for (const graph::SharedSlot& shared : split_.shared) {
      if (shared.stages.front() == stage) continue;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (graph.slots[i].names != shared.names) continue;
        tensors[i] = tensors[i].detach().clone().set_requires_grad(tensors[i].requires_grad());
      }
    }
    module = std::make_shared<graph::GraphModule>(graph, std::move(tensors));
    module->train(training_);
  }
  if (device) module->to(*device);
  return module;
}

void Pipe::train(bool on) {
  training_ = on;
  for (const auto& module : modules_) {
    if (module) module->train(on);
  }
}

IValue Pipe::forward(const value::Args& args, const value::Kwargs& kwargs) {
  const std::vector<IValue> user = flatten_inputs(graph_, args, kwargs);
  check_inputs(graph_, user, size_hint_);
  std::vector<std::vector<IValue>> outputs;
  for (int s = 0; s < num_stages(); ++s) {
    std::vector<IValue> inputs;
    for (const graph::InputSource& source : split_.stage(StageId(s)).sources) {
      if (const auto* from = std::get_if<graph::FromUser>(&source)) {
        inputs.push_back(user[static_cast<std::size_t>(from->input)]);
      } else {
        const auto& [stage, output] = std::get<graph::FromStage>(source);
        inputs.push_back(detached(outputs[stage.index()][static_cast<std::size_t>(output)]));
      }
    }
    outputs.push_back(stage_module(StageId(s))->run(std::move(inputs)));
  }
  return unflatten(outputs.back(), graph_.output_structure);
}

PipeInfo Pipe::info() const {
  return {.graph = to_string(graph_),
          .num_stages = num_stages(),
          .has_loss_and_backward = options_.loss_output.has_value()};
}

std::string to_string(const Pipe& pipe) {
  std::string text;
  for (int s = 0; s < pipe.num_stages(); ++s)
    text += str_cat("stage ", s, "\n", to_string(pipe.stage_graph(StageId(s))));
  return text + to_string(pipe.split());
}

std::string Pipe::graphviz() const {
  std::string text = "digraph pipe {\n  rankdir=LR;\n  node [shape=box];\n  user [shape=ellipse];\n";
  for (int s = 0; s < num_stages(); ++s) {
    std::size_t parameters = 0;
    const graph::Graph& graph = stage_graph(StageId(s));
    for (const graph::Slot& slot : graph.slots) {
      const auto& meta = graph.value(slot.value).meta;
      if (slot.kind == graph::Slot::Kind::Parameter && meta) parameters += meta->nbytes();
    }
    text += str_cat("  stage", s, " [label=\"stage ", s, "\\n", graph.nodes.size(), " operators\\n",
                    format_bytes(parameters), " of parameters\"];\n");
    const auto& sources = split_.stage(StageId(s)).sources;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const graph::Value& value = graph.value(graph.inputs[i].value);
      const auto* from = std::get_if<graph::FromStage>(&sources[i]);
      const bool skips = from && from->stage.value + 1 < s;
      std::string label = value.name + (value.meta ? "\\n" + to_string(*value.meta) : "");
      std::replace(label.begin(), label.end(), '"', '\'');
      text += str_cat("  ", (from ? str_cat("stage", from->stage.value) : std::string("user")), " -> stage",
                      s, " [label=\"", label, "\"", (skips ? ", style=dashed" : ""), "];\n");
    }
  }
  return text + "}\n";
}

graph::ModelTensors model_tensors(const torch::nn::Module& module) {
  graph::ModelTensors tensors;
  for (const auto& item : module.named_parameters()) tensors.parameters.push_back({item.key(), item.value()});
  for (const auto& item : module.named_buffers()) tensors.buffers.push_back({item.key(), item.value()});
  return tensors;
}

Pipe pipeline_of(const graph::ForwardFunction& forward, const graph::ModelTensors& model,
                 const value::Args& example_args, const value::Kwargs& example_kwargs, const SplitSpec& spec,
                 PipeOptions options) {
  const auto record = options.dynamic_batch ? graph::capture_dynamic : graph::capture;
  auto captured = std::make_shared<graph::Captured>(record(forward, model, example_args, example_kwargs));
  const TensorSource source = [captured](const std::vector<graph::Slot>& slots) {
    std::vector<at::Tensor> tensors;
    for (const graph::Slot& slot : slots) {
      const auto& all = captured->graph.slots;
      const auto it = std::find_if(all.begin(), all.end(),
                                   [&](const graph::Slot& other) { return other.names == slot.names; });
      tensors.push_back(captured->tensors[static_cast<std::size_t>(it - all.begin())]);
    }
    return tensors;
  };
  const std::vector<IValue> example = flatten_inputs(captured->graph, example_args, example_kwargs);
  const bool dynamic = options.dynamic_batch;
  Pipe pipe(captured->graph, source, spec, std::move(options), example);
  if (!dynamic) {
    pipe.size_hint_ =
        "the model was captured for these sizes: pass microbatches of exactly that size, or capture it for "
        "any number of rows with PipeOptions::dynamic_batch";
  }
  return pipe;
}

Pipe pipeline(const std::shared_ptr<runtime::StageModule>& module, const value::Args& example_args,
              const value::Kwargs& example_kwargs, const SplitSpec& spec, PipeOptions options) {
  const graph::ForwardFunction forward = [module](const value::Args& args, const value::Kwargs& kwargs) {
    return module->forward(args, kwargs).output;
  };
  graph::ModelTensors tensors;
  for (const value::NamedTensor& item : module->parameters())
    tensors.parameters.push_back({item.name, item.tensor});
  for (const value::NamedTensor& item : module->buffers())
    tensors.buffers.push_back({item.name, item.tensor});
  return pipeline_of(forward, tensors, example_args, example_kwargs, spec, std::move(options));
}

Pipe load_pt2(const std::filesystem::path& file, const SplitSpec& spec, PipeOptions options,
              const std::vector<IValue>& example) {
  auto archive = std::make_shared<graph::Pt2Archive>(file);
  const TensorSource source = [archive](const std::vector<graph::Slot>& slots) {
    return archive->load(slots);
  };
  return {archive->graph(), source, spec, std::move(options), example};
}

}  // namespace penstock::pipe
