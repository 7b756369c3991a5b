// `penstock inspect`: shows the contents of an exported model and the stages it would be split into.
#include "base/json.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/changed_weights.h"
#include "commands/commands.h"
#include "commands/model_data.h"
#include "commands/pipe_options.h"
#include "commands/trained_weights.h"
#include "config/device.h"
#include "graph/passes/graph_costs.h"
#include "graph/run/node_profile.h"
#include "report/stages.h"
#include "train/preflight/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>
#include <penstock/graph/pt2.h>
#include <penstock/pipe/pipe.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

namespace penstock::tool {
namespace {

enum class InspectFormat { Summary, Graph, Graphviz, Svg, Profile };

//! `linear x4, gelu x2`, the most frequent first.
std::string operators_of(const graph::Graph& graph) {
  std::map<std::string, int> counts;
  for (const graph::Node& node : graph.nodes) {
    const std::string name = node.name();
    if (node.kind == graph::Node::Kind::Op) ++counts[name.starts_with("aten::") ? name.substr(6) : name];
  }
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> texts;
  for (const auto& [name, count] : sorted) texts.push_back(name + (count > 1 ? str_cat(" x", count) : ""));
  return join(texts, ", ");
}

//! The outputs of a stage, each with its receivers: later stages, or the user for the last stage.
std::vector<std::pair<std::string, std::string>> outputs_of(const pipe::Pipe& pipe, int stage) {
  std::vector<std::pair<std::string, std::string>> outputs;
  const graph::Graph& graph = pipe.stage_graph(StageId(stage));
  const bool last = stage + 1 == pipe.num_stages();
  const std::vector<std::string> paths = pipe.graph().output_paths();
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const graph::ValueId* id = graph.outputs[i].value();
    const graph::Value* value = id ? &graph.value(*id) : nullptr;
    const std::string what =
        !value ? "a constant" : "%" + value->name + (value->meta ? " " + to_string(*value->meta) : "");
    std::vector<std::string> readers;
    for (int s = stage + 1; s < pipe.num_stages(); ++s) {
      for (const graph::InputSource& source : pipe.split().stage(StageId(s)).sources) {
        const auto* from = std::get_if<graph::FromStage>(&source);
        if (from && from->stage.value == stage && from->output == static_cast<int>(i))
          readers.push_back(str_cat("stage ", s));
      }
    }
    outputs.emplace_back(what, last ? "the user, " + paths[i] : join(readers, " and "));
  }
  return outputs;
}

std::string summary_of(const pipe::Pipe& pipe) {
  std::string text;
  for (int s = 0; s < pipe.num_stages(); ++s) {
    const graph::Graph& graph = pipe.stage_graph(StageId(s));
    const graph::GraphCosts costs = graph_costs(graph);
    text += str_cat("stage ", s, "  ", counted(static_cast<std::int64_t>(graph.nodes.size()), "operator"),
                    ", ", elements_of(graph, graph::Slot::Kind::Parameter), " parameters (",
                    format_bytes(costs.parameter_bytes), "), ", elements_of(graph, graph::Slot::Kind::Buffer),
                    " elements in buffers, ", format_bytes(costs.activation_bytes), " of activations\n");
    text += "         modules: " + join(modules_of(pipe, StageId(s)), ", ") + "\n";
    text += "         operators: " + operators_of(graph) + "\n";
  }
  const std::vector<std::string> outputs = pipe.graph().output_paths();
  text += to_string(pipe.split());
  for (int s = 0; s < pipe.num_stages(); ++s) {
    for (const auto& [what, to] : outputs_of(pipe, s))
      text += str_cat("stage ", s, "  ", what, "  to ", to, "\n");
  }
  return text + "outputs  " + join(outputs, ", ") + "\n";
}

std::string json_of(const pipe::Pipe& pipe) {
  JsonWriter json;
  json.begin_object().field("stages_count", pipe.num_stages()).key("stages").begin_array();
  for (int s = 0; s < pipe.num_stages(); ++s) {
    const graph::Graph& graph = pipe.stage_graph(StageId(s));
    const graph::GraphCosts costs = graph_costs(graph);
    json.begin_object().field("stage", s).key("operators").begin_array();
    for (const graph::Node& node : graph.nodes) json.value(node.name());
    json.end_array().key("modules").begin_array();
    for (const std::string& module : modules_of(pipe, StageId(s))) json.value(module);
    json.end_array().field("flops", costs.flops).field("parameter_bytes", costs.parameter_bytes);
    json.field("activation_bytes", costs.activation_bytes).key("parameters").begin_array();
    for (const graph::Slot& slot : graph.slots) {
      if (slot.kind == graph::Slot::Kind::Parameter) json.value(slot.names[0]);
    }
    json.end_array().key("inputs").begin_array();
    const auto& sources = pipe.split().stage(StageId(s)).sources;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const graph::Value& value = graph.value(graph.inputs[i].value);
      json.begin_object().field("name", value.name).field("type", value.meta ? to_string(*value.meta) : "");
      const auto* from = std::get_if<graph::FromStage>(&sources[i]);
      json.field("from", from ? "stage" : "user");
      if (from) json.field("stage", from->stage.value).field("skips", from->stage.value + 1 < s);
      json.end_object();
    }
    json.end_array().key("outputs").begin_array();
    for (const auto& [what, to] : outputs_of(pipe, s))
      json.begin_object().field("what", what).field("to", to).end_object();
    json.end_array().end_object();
  }
  json.end_array().key("tied").begin_array();
  for (const graph::SharedSlot& slot : pipe.split().shared) {
    json.begin_object().key("names").begin_array();
    for (const std::string& name : slot.names) json.value(name);
    json.end_array().key("stages").begin_array();
    for (const StageId stage : slot.stages) json.value(stage.value);
    json.end_array().end_object();
  }
  json.end_array().key("outputs").begin_array();
  for (const std::string& path : pipe.graph().output_paths()) json.value(path);
  json.end_array().end_object();
  return json.text() + "\n";
}

std::vector<c10::IValue> example_of(const graph::Graph& graph, const std::string& input, c10::Device device) {
  const ModelData data = read_model_data(graph, input);
  return data.example(data.microbatches_for(graph, std::nullopt, 1), device);
}

//! The times of all nodes, in their order in the graph.
std::string profile_json(const graph::Graph& graph, const std::vector<double>& seconds, c10::Device device) {
  JsonWriter json;
  json.begin_object().key("nodes").begin_array();
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const graph::Node& node = graph.nodes[i];
    json.begin_object().field("operator", node.name()).field("module", node.module);
    json.field("seconds", seconds[i]).field("flops", node_flops(graph, node)).end_object();
  }
  json.end_array().field("seconds", std::accumulate(seconds.begin(), seconds.end(), 0.0));
  json.field("device", device.str()).end_object();
  return json.text() + "\n";
}

std::string profile_of(const OpenedModel& model, const std::string& input, c10::Device device, bool as_json) {
  at::set_num_threads(1);
  const graph::GraphModule module(model.graph, model.source(model.graph.slots), device);
  const std::vector<double> seconds = profile_nodes(module, example_of(model.graph, input, device));
  if (as_json) return profile_json(model.graph, seconds, device);
  return profile_text(model.graph, seconds) + str_cat("measured on ", device.str(), "\n");
}

}  // namespace

int inspect_command(Arguments& arguments) {
  std::string file;
  SplitOptions split;
  InspectFormat format = InspectFormat::Summary;
  std::string input, output, checkpoint;
  std::vector<std::string> renames;
  DeviceChoice device = DeviceChoice::Cpu;
  arguments.positional("MODEL.pt2", file,
                       "an archive written by torch.export.save [with --checkpoint: the built-in GPT]",
                       Arguments::Need::Optional);
  arguments.option("--checkpoint", checkpoint, kTrainedHelp);
  arguments.option("--rename", renames, kRenameHelp);
  split.declare(arguments);
  arguments.choice<InspectFormat>("--as", format,
                                  {{"summary", InspectFormat::Summary},
                                   {"graph", InspectFormat::Graph},
                                   {"dot", InspectFormat::Graphviz},
                                   {"graphviz", InspectFormat::Graphviz},
                                   {"svg", InspectFormat::Svg},
                                   {"profile", InspectFormat::Profile}},
                                  "output format");
  arguments.option("--input", input,
                   "a safetensors file of examples; required by --balance time and --as profile");
  arguments.choice<DeviceChoice>("--device", device, kDeviceChoices,
                                 "device on which --balance time and --as profile measure");
  arguments.option("-o,--output", output, "output file (default: standard output)");
  arguments.parse();
  const bool measures = split.by == pipe::BalanceBy::MeasuredTime || format == InspectFormat::Profile;
  if (measures && input.empty())
    throw UsageError("--balance time and --as profile need examples to measure", {},
                     "pass a safetensors file with --input");
  if (!measures && device == DeviceChoice::Cuda)
    throw UsageError("--device requires --balance time or --as profile", {}, "nothing else is measured");
  const c10::Device on = device_of(resolve_device(device, 1).choice);
  const OpenedModel model = open_with_weights(file, checkpoint, input, read_renames(renames));
  if (format == InspectFormat::Profile) {
    write_output(output, profile_of(model, input, on, arguments.json()));
    return 0;
  }
  std::vector<c10::IValue> example;
  if (measures) example = example_of(model.graph, input, on);
  const pipe::Pipe pipe(model.graph, model.source, split.spec().value_or(pipe::AtMarks{}), {}, example);
  if (arguments.json()) {
    write_output(output, json_of(pipe));
    return 0;
  }
  switch (format) {
    case InspectFormat::Summary:
      write_output(output, summary_of(pipe));
      break;
    case InspectFormat::Graph:
      write_output(output, to_string(pipe));
      break;
    case InspectFormat::Graphviz:
      write_output(output, pipe.graphviz());
      break;
    case InspectFormat::Svg:
      write_output(output, pipe.svg());
      break;
    case InspectFormat::Profile:
      break;
  }
  return 0;
}

}  // namespace penstock::tool
