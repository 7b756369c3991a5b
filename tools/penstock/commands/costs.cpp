// `penstock costs`: writes the layers of an exported model as a cost file for `simulate` and `plan`.
// `penstock plan --model` runs this command, because `plan` itself does not link libtorch.
#include "base/json.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "commands/model_data.h"
#include "config/device.h"
#include "config/param_dtype.h"
#include "graph/passes/passes.h"
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

//! Sets what a run with this optimizer stores for the parameters of the layer.
void set_training_bytes(pipe::GraphLayer& layer, const graph::Graph& graph,
                        const train::OptimizerOptions& optimizer, train::ParameterDtype dtype) {
  plan::StageCosts& costs = layer.layer.costs;
  std::vector<value::NamedTensor> trained;
  for (const std::size_t index : layer.parameters) {
    const graph::Slot& slot = graph.slots[index];
    const auto& meta = graph.value(slot.value).meta;
    if (!meta) continue;
    const StoredDtypes dtypes = stored_dtypes(meta->dtype, slot.requires_grad, dtype);
    const auto elements = static_cast<std::uint64_t>(meta->numel());
    const auto bytes_more = [&](at::ScalarType more) {  // than in the dtype of the model
      return elements * (c10::elementSize(more) - c10::elementSize(meta->dtype));
    };
    costs.parameter_bytes += bytes_more(dtypes.stored);
    if (dtypes.has_copy()) costs.parameter_bytes += elements * c10::elementSize(dtypes.computed);
    if (!slot.requires_grad) continue;
    costs.gradient_bytes += bytes_more(dtypes.stored);
    const auto options = at::TensorOptions(dtypes.stored).device(at::kMeta);
    trained.push_back({slot.names[0], at::empty({meta->numel()}, options)});
  }
  costs.optimizer_bytes = optimizer_bytes(trained, optimizer);
}

//! The graph as a run with this option trains it.
graph::Graph converted_graph(graph::Graph graph, ParamDtype dtype) {
  const auto to = converted_dtype(dtype);
  if (!to) return graph;
  for (const at::ScalarType from : reduced_parameter_dtypes(graph)) graph = convert_dtype(graph, from, *to);
  return graph;
}

//! The tensors of the slots, in the dtypes of the graph.
std::vector<at::Tensor> slot_tensors(const graph::Pt2Archive& archive, const graph::Graph& graph) {
  std::vector<at::Tensor> tensors = archive.load(graph.slots);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (const auto& meta = graph.value(graph.slots[i].value).meta; meta)
      tensors[i] = tensors[i].detach().to(meta->dtype).set_requires_grad(tensors[i].requires_grad());
  return tensors;
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
  ParamDtype dtype = ParamDtype::Auto;
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
  arguments.choice<ParamDtype>("--param-dtype", dtype, param_dtype_choices(), kParamDtypeHelp);
  arguments.option("-o,--output", output, "output file (default: standard output)");
  arguments.parse();
  if (!(flops > 0)) throw UsageError("--flops must be greater than 0");
  if (layers < 1) throw UsageError("--layers must be 1 or more");
  if (input.empty() && device == DeviceChoice::Cuda)
    throw UsageError("--device requires --input", {},
                     "add --input FILE.safetensors, or estimate with --flops");
  const graph::Pt2Archive archive = open_archive(model);
  const graph::Graph exported = converted_graph(archive.graph(), dtype);
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
    const graph::GraphModule module(exported, slot_tensors(archive, exported), device_of(device));
    seconds = profile_nodes(module, data.example(microbatches, device_of(device)));
  }
  const graph::Graph& graph = sized ? *sized : exported;
  ModelCosts costs{.layers = pipe::graph_layers(graph, seconds, static_cast<std::size_t>(layers))};
  for (pipe::GraphLayer& layer : costs.layers)
    set_training_bytes(layer, graph, optimizer, parameter_dtype(dtype));
  costs.modules = pipe::recomputable_modules(graph, costs.layers, seconds);
  find_rows(costs, exported, graph);
  const std::string how = input.empty()
                              ? "estimated at " + plan::cost_number(flops) + " operations per second"
                              : str_cat("measured on ", device_of(device).str());
  write_output(output, arguments.json() ? json_of(costs) : toml_of(costs, how));
  return 0;
}

}  // namespace penstock::tool
