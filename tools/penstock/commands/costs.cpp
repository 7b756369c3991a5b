// `penstock costs`: writes the layers of an exported model as a cost file for `simulate` and `plan`.
// `penstock plan --model` runs this command, because `plan` itself does not link libtorch.
#include "base/json.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "commands/model_data.h"
#include "config/device.h"
#include "graph/run/node_profile.h"
#include "pipe/balance.h"
#include "pipe/graph_layers.h"
#include "plan/cost_text.h"
#include "report/stages.h"
#include "train/forecast/forecast.h"
#include "train/preflight/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/graph/pt2.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <optional>

namespace penstock::tool {
namespace {

std::string quoted_toml(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + "\"";
}

//! The layers of a model and, for `plan`, what a cost file does not contain.
struct ModelCosts {
  std::vector<pipe::GraphLayer> layers{};
  std::vector<plan::RecomputableModule> modules{};
  std::int64_t microbatch_rows = 0;  //!< 0: unknown
  bool has_fixed_rows = false;       //!< the model only takes microbatches of that size
};

//! The first input with rows determines their number.
void find_rows(ModelCosts& costs, const graph::Graph& exported, const graph::Graph& sized) {
  for (std::size_t i = 0; i < exported.inputs.size(); ++i) {
    const auto& meta = exported.value(exported.inputs[i].value).meta;
    const auto& known = sized.value(sized.inputs[i].value).meta;
    if (exported.inputs[i].constant || !meta || !known || meta->sizes.empty() || known->sizes.empty())
      continue;
    costs.microbatch_rows = known->sizes[0].size;
    costs.has_fixed_rows = meta->sizes[0].expression.empty();
    return;
  }
}

//! Adds what a run with this optimizer stores in addition for the parameters of the layer.
void add_training_bytes(pipe::GraphLayer& layer, const graph::Graph& graph,
                        const train::OptimizerOptions& optimizer, train::ParameterDtype dtype) {
  std::vector<value::NamedTensor> trained;
  for (const std::size_t index : layer.parameters) {
    const graph::Slot& slot = graph.slots[index];
    const auto& meta = graph.value(slot.value).meta;
    if (!meta || !slot.requires_grad) continue;
    const auto options = at::TensorOptions(meta->dtype).device(at::kMeta);
    trained.push_back({slot.names[0], at::empty({meta->numel()}, options)});
  }
  plan::StageCosts& costs = layer.layer.costs;
  costs.optimizer_bytes = optimizer_bytes(trained, optimizer);
  if (dtype == train::ParameterDtype::Bfloat16) costs.parameter_bytes += costs.parameter_bytes / 2;  // copies
}

std::string toml_of(const ModelCosts& costs, const std::string& how) {
  std::string text = "# Times in seconds and sizes in bytes of one microbatch, " + how + ".\n";
  for (const pipe::GraphLayer& one : costs.layers)
    text += str_cat("\n[[layers]]\nname = ", quoted_toml(one.layer.name), "\n", to_toml(one.layer.costs));
  return text;
}

void write_layer(JsonWriter& json, const pipe::GraphLayer& one) {
  const plan::StageCosts& costs = one.layer.costs;
  json.begin_object().field("name", one.layer.name);
  json.field("first_operator", static_cast<std::uint64_t>(one.position)).field("forward", costs.forward);
  json.field("input", costs.input).field("weight", costs.weight);
  json.field("activation_bytes", costs.activation_bytes).field("input_bytes", costs.input_bytes);
  json.field("output_bytes", costs.output_bytes).field("parameter_bytes", costs.parameter_bytes);
  json.field("gradient_bytes", costs.gradient_bytes).field("optimizer_bytes", costs.optimizer_bytes);
  json.end_object();
}

std::string json_of(const ModelCosts& costs) {
  JsonWriter json;
  json.begin_object().field("microbatch_rows", costs.microbatch_rows);
  json.field("fixed_rows", costs.has_fixed_rows).key("layers").begin_array();
  for (const pipe::GraphLayer& layer : costs.layers) write_layer(json, layer);
  json.end_array().key("modules").begin_array();
  for (const plan::RecomputableModule& module : costs.modules) {
    json.begin_object().field("name", module.name).key("parts").begin_array();
    for (const plan::RecomputableModule::Part& part : module.parts) {
      json.begin_object().field("layer", part.layer);
      json.field("bytes", part.bytes).field("time", part.time).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
  return json.text() + "\n";
}

}  // namespace

int costs_command(Arguments& arguments) {
  std::string model, output, input;
  double flops = kDefaultFlops;
  std::int64_t layers = 64;
  DeviceChoice device = DeviceChoice::Cpu;
  train::OptimizerOptions optimizer;
  train::ParameterDtype dtype = train::ParameterDtype::Float32;
  arguments.positional("MODEL.pt2", model, "an archive written by torch.export.save");
  arguments.option("--flops", flops, "floating-point operations per second, used to estimate times");
  arguments.option("--input", input,
                   "a safetensors file of examples; times are measured on one microbatch of it");
  arguments.choice<DeviceChoice>("--device", device, kDeviceChoices, "device on which times are measured");
  arguments.option("--layers", layers,
                   "maximum number of layers; nodes are grouped into layers of similar time");
  arguments.choice<train::OptimizerKind>(
      "--optimizer", optimizer.kind,
      named({train::OptimizerKind::AdamW, train::OptimizerKind::Adam, train::OptimizerKind::Sgd,
             train::OptimizerKind::Adagrad, train::OptimizerKind::RmsProp}),
      "optimizer of the run, for the bytes of its states");
  arguments.option("--momentum", optimizer.momentum, "momentum of sgd and rmsprop");
  arguments.choice<train::ParameterDtype>(
      "--param-dtype", dtype, named({train::ParameterDtype::Float32, train::ParameterDtype::Bfloat16}),
      "dtype of the parameters that stages compute with; bf16: next to float32 master weights");
  arguments.option("-o,--output", output, "output file (default: standard output)");
  arguments.parse();
  if (!(flops > 0)) throw UsageError("--flops must be greater than 0");
  if (layers < 1) throw UsageError("--layers must be 1 or more");
  if (input.empty() && device == DeviceChoice::Cuda)
    throw UsageError("--device requires --input", {},
                     "add --input FILE.safetensors, or estimate with --flops");
  const graph::Pt2Archive archive = open_archive(model);
  const graph::Graph& exported = archive.graph();
  std::optional<graph::Graph> sized;
  std::vector<double> seconds;
  if (input.empty()) {
    seconds = pipe::flop_weights(exported);
    for (double& time : seconds) time /= flops;
  } else {
    at::set_num_threads(1);
    const ModelData data = read_model_data(exported, input);
    const int microbatches = data.microbatches_for(exported, std::nullopt, 1);
    sized = sized_graph(exported, data.example(microbatches));
    device = resolve_device(device, 1).choice;
    const graph::GraphModule module(exported, archive.load(exported.slots), device_of(device));
    seconds = profile_nodes(module, data.example(microbatches, device_of(device)));
  }
  const graph::Graph& graph = sized ? *sized : exported;
  ModelCosts costs{.layers = pipe::graph_layers(graph, seconds, static_cast<std::size_t>(layers))};
  for (pipe::GraphLayer& layer : costs.layers) add_training_bytes(layer, graph, optimizer, dtype);
  costs.modules = pipe::recomputable_modules(graph, costs.layers, seconds);
  find_rows(costs, exported, graph);
  const std::string how = input.empty()
                              ? "estimated at " + plan::cost_number(flops) + " operations per second"
                              : str_cat("measured on ", device_of(device).str());
  write_output(output, arguments.json() ? json_of(costs) : toml_of(costs, how));
  return 0;
}

}  // namespace penstock::tool
