// `penstock inspect`: what an exported model is made of, and what its stages would be.
#include "arguments.h"
#include "commands.h"
#include "model_checks.h"
#include "model_data.h"
#include "pipe_options.h"

#include <penstock/base/error.h>
#include <penstock/base/json.h>
#include <penstock/base/text.h>
#include <penstock/graph/costs.h>
#include <penstock/graph/profile.h>
#include <penstock/graph/pt2.h>
#include <penstock/graph/text.h>
#include <penstock/pipe/pipe.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>

namespace penstock::tool {
namespace {

enum class Form { Summary, Graph, Graphviz, Svg, Profile };

std::size_t count_of(const Graph& graph, Slot::Kind kind) {
  std::size_t elements = 0;
  for (const Slot& slot : graph.slots) {
    const auto& meta = graph.value(slot.value).meta;
    if (slot.kind == kind && meta) elements += static_cast<std::size_t>(meta->numel());
  }
  return elements;
}

//! `linear x4, gelu x2`, the most frequent first.
std::string operators_of(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Node& node : graph.nodes) {
    const std::string name = node.name();
    if (node.kind == Node::Kind::Op) ++counts[name.starts_with("aten::") ? name.substr(6) : name];
  }
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> words;
  for (const auto& [name, count] : sorted)
    words.push_back(name + (count > 1 ? " x" + std::to_string(count) : ""));
  return join(words, ", ");
}

//! The modules of a stage: not those inside of a module that is in this stage only.
std::vector<std::string> modules_of(const Pipe& pipe, int stage) {
  std::map<std::string, int> holders;
  for (int s = 0; s < pipe.num_stages(); ++s) {
    for (const std::string& path : pipe.stage_modules(s)) ++holders[path];
  }
  std::vector<std::string> modules;
  for (const std::string& path : pipe.stage_modules(stage)) {
    const std::size_t dot = path.rfind('.');
    const bool inside = dot != std::string::npos && holders[path.substr(0, dot)] == 1;
    if (holders[path] == 1 && !inside) modules.push_back(path);
    const auto is_child = [&](const auto& item) { return item.first.starts_with(path + "."); };
    if (holders[path] > 1 && std::none_of(holders.begin(), holders.end(), is_child))
      modules.push_back(path + " (in part)");
  }
  return modules;
}

//! What a stage gives to which stage, or for the last one to the user.
std::vector<std::pair<std::string, std::string>> outputs_of(const Pipe& pipe, int stage) {
  std::vector<std::pair<std::string, std::string>> outputs;
  const Graph& graph = pipe.stage_graph(stage);
  const bool last = stage + 1 == pipe.num_stages();
  const std::vector<std::string> paths = pipe.graph().output_paths();
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const ValueId* id = graph.outputs[i].value();
    const Value* value = id ? &graph.value(*id) : nullptr;
    const std::string what =
        !value ? "a constant" : "%" + value->name + (value->meta ? " " + value->meta->text() : "");
    std::vector<std::string> takers;
    for (int s = stage + 1; s < pipe.num_stages(); ++s) {
      for (const InputSource& source : pipe.split().stages[static_cast<std::size_t>(s)].sources) {
        const auto* from = std::get_if<FromStage>(&source);
        if (from && from->stage == stage && from->output == static_cast<int>(i))
          takers.push_back("stage " + std::to_string(s));
      }
    }
    outputs.emplace_back(what, last ? "the user, " + paths[i] : join(takers, " and "));
  }
  return outputs;
}

std::string summary_of(const Pipe& pipe) {
  std::string text;
  for (int s = 0; s < pipe.num_stages(); ++s) {
    const Graph& graph = pipe.stage_graph(s);
    const GraphCosts costs = graph_costs(graph);
    text += "stage " + std::to_string(s) + "  " + std::to_string(graph.nodes.size()) +
            (graph.nodes.size() == 1 ? " operator, " : " operators, ") +
            std::to_string(count_of(graph, Slot::Kind::Parameter)) + " parameters (" +
            bytes_text(costs.parameter_bytes) + "), " + std::to_string(count_of(graph, Slot::Kind::Buffer)) +
            " elements in buffers, " + bytes_text(costs.activation_bytes) + " of activations\n";
    text += "         modules: " + join(modules_of(pipe, s), ", ") + "\n";
    text += "         operators: " + operators_of(graph) + "\n";
  }
  const std::vector<std::string> outputs = pipe.graph().output_paths();
  text += pipe.input_table();
  for (int s = 0; s < pipe.num_stages(); ++s) {
    for (const auto& [what, to] : outputs_of(pipe, s))
      text += "stage " + std::to_string(s) + "  " + what + "  to " + to + "\n";
  }
  return text + "outputs  " + join(outputs, ", ") + "\n";
}

std::string json_of(const Pipe& pipe) {
  JsonWriter json;
  json.begin_object().field("stages_count", pipe.num_stages()).key("stages").begin_array();
  for (int s = 0; s < pipe.num_stages(); ++s) {
    const Graph& graph = pipe.stage_graph(s);
    const GraphCosts costs = graph_costs(graph);
    json.begin_object().field("stage", s).key("operators").begin_array();
    for (const Node& node : graph.nodes) json.value(node.name());
    json.end_array().key("modules").begin_array();
    for (const std::string& module : modules_of(pipe, s)) json.value(module);
    json.end_array().field("flops", costs.flops).field("parameter_bytes", costs.parameter_bytes);
    json.field("activation_bytes", costs.activation_bytes).key("parameters").begin_array();
    for (const Slot& slot : graph.slots) {
      if (slot.kind == Slot::Kind::Parameter) json.value(slot.names[0]);
    }
    json.end_array().key("inputs").begin_array();
    const auto& sources = pipe.split().stages[static_cast<std::size_t>(s)].sources;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const Value& value = graph.value(graph.inputs[i].value);
      json.begin_object().field("name", value.name).field("type", value.meta ? value.meta->text() : "");
      const auto* from = std::get_if<FromStage>(&sources[i]);
      json.field("from", from ? "stage" : "user");
      if (from) json.field("stage", from->stage).field("skips", from->stage + 1 < s);
      json.end_object();
    }
    json.end_array().key("outputs").begin_array();
    for (const auto& [what, to] : outputs_of(pipe, s))
      json.begin_object().field("what", what).field("to", to).end_object();
    json.end_array().end_object();
  }
  json.end_array().key("tied").begin_array();
  for (const SharedSlot& slot : pipe.split().shared) {
    json.begin_object().key("names").begin_array();
    for (const std::string& name : slot.names) json.value(name);
    json.end_array().key("stages").begin_array();
    for (const int stage : slot.stages) json.value(stage);
    json.end_array().end_object();
  }
  json.end_array().key("outputs").begin_array();
  for (const std::string& path : pipe.graph().output_paths()) json.value(path);
  json.end_array().end_object();
  return json.text() + "\n";
}

std::vector<c10::IValue> example_of(const Graph& graph, const std::string& input) {
  const ModelData data = read_model_data(graph, input);
  return data.example(data.microbatches_for(graph, std::nullopt, 1));
}

std::string profile_of(const Pt2Archive& archive, const std::string& input) {
  at::set_num_threads(1);
  const Graph& graph = archive.graph();
  const GraphModule module(graph, archive.load(graph.slots));
  return profile_text(graph, profile_nodes(module, example_of(graph, input)));
}

}  // namespace

int inspect_command(Arguments& arguments) {
  std::string file;
  CutOptions cut;
  Form form = Form::Summary;
  std::string input, output;
  arguments.positional("MODEL.pt2", file, "an archive that torch.export.save wrote");
  cut.declare(arguments);
  arguments.choice<Form>("--as", form,
                         {{"summary", Form::Summary},
                          {"graph", Form::Graph},
                          {"dot", Form::Graphviz},
                          {"graphviz", Form::Graphviz},
                          {"svg", Form::Svg},
                          {"profile", Form::Profile}},
                         "what is printed");
  arguments.option("--input", input, "a safetensors file of examples, for --balance time and --as profile");
  arguments.option("-o,--output", output, "a file to write instead of standard output");
  arguments.parse();
  const bool measures = cut.by == BalanceBy::MeasuredTime || form == Form::Profile;
  if (measures && input.empty()) throw UsageError("measuring needs examples", {}, "give them with --input");
  const Pt2Archive archive = open_archive(file);
  if (form == Form::Profile) {
    write_output(output, profile_of(archive, input));
    return 0;
  }
  std::vector<c10::IValue> example;
  if (measures) example = example_of(archive.graph(), input);
  const Pipe pipe = load_pt2(file, cut.spec().value_or(AtMarks{}), {}, example);
  if (arguments.json()) {
    write_output(output, json_of(pipe));
    return 0;
  }
  switch (form) {
    case Form::Summary:
      write_output(output, summary_of(pipe));
      break;
    case Form::Graph:
      write_output(output, pipe.print_readable());
      break;
    case Form::Graphviz:
      write_output(output, pipe.graphviz());
      break;
    case Form::Svg:
      write_output(output, pipe.svg());
      break;
    case Form::Profile:
      break;
  }
  return 0;
}

}  // namespace penstock::tool
