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
#include "plan/cost_text.h"
#include "report/stages.h"
#include "train/preflight/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/graph/pt2.h>

#include <ATen/Parallel.h>

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

std::string toml_of(const std::vector<plan::Layer>& layers, const std::string& how) {
  std::string text = "# Times in seconds and sizes in bytes of one microbatch, " + how + ".\n";
  for (const plan::Layer& layer : layers)
    text += str_cat("\n[[layers]]\nname = ", quoted_toml(layer.name), "\n", to_toml(layer.costs));
  return text;
}

std::string json_of(const std::vector<plan::Layer>& layers) {
  JsonWriter json;
  json.begin_array();
  for (const plan::Layer& layer : layers) {
    const plan::StageCosts& costs = layer.costs;
    json.begin_object().field("name", layer.name).field("forward", costs.forward);
    json.field("input", costs.input).field("weight", costs.weight);
    json.field("activation_bytes", costs.activation_bytes).field("input_bytes", costs.input_bytes);
    json.field("output_bytes", costs.output_bytes).field("parameter_bytes", costs.parameter_bytes);
    json.field("gradient_bytes", costs.gradient_bytes).end_object();
  }
  json.end_array();
  return json.text() + "\n";
}

}  // namespace

int costs_command(Arguments& arguments) {
  std::string model, output, input;
  double flops = kDefaultFlops;
  std::int64_t layers = 64;
  DeviceChoice device = DeviceChoice::Cpu;
  arguments.positional("MODEL.pt2", model, "an archive written by torch.export.save");
  arguments.option("--flops", flops, "floating-point operations per second, used to estimate times");
  arguments.option("--input", input,
                   "a safetensors file of examples; times are measured on one microbatch of it");
  arguments.choice<DeviceChoice>("--device", device, kDeviceChoices, "device on which times are measured");
  arguments.option("--layers", layers,
                   "maximum number of layers; nodes are grouped into layers of similar time");
  arguments.option("-o,--output", output, "output file (default: standard output)");
  arguments.parse();
  if (!(flops > 0)) throw UsageError("--flops must be greater than 0");
  if (layers < 1) throw UsageError("--layers must be 1 or more");
  if (input.empty() && device == DeviceChoice::Cuda)
    throw UsageError("--device requires --input", {},
                     "add --input FILE.safetensors, or estimate with --flops");
  const graph::Pt2Archive archive = open_archive(model);
  const graph::Graph& graph = archive.graph();
  std::vector<double> seconds;
  if (input.empty()) {
    seconds = pipe::flop_weights(graph);
    for (double& time : seconds) time /= flops;
  } else {
    at::set_num_threads(1);
    const ModelData data = read_model_data(graph, input);
    std::vector<c10::IValue> example = data.example(data.microbatches_for(graph, std::nullopt, 1));
    device = resolve_device(device, 1).choice;
    const c10::Device on = device_of(device);
    graph::GraphModule module(graph, archive.load(graph.slots));
    module.to(on);
    for (c10::IValue& leaf : example)
      if (leaf.isTensor()) leaf = leaf.toTensor().to(on);
    seconds = profile_nodes(module, example);
  }
  const std::vector<plan::Layer> found = pipe::graph_layers(graph, seconds, static_cast<std::size_t>(layers));
  const std::string how = input.empty()
                              ? "estimated at " + plan::cost_number(flops) + " operations per second"
                              : str_cat("measured on ", device_of(device).str());
  write_output(output, arguments.json() ? json_of(found) : toml_of(found, how));
  return 0;
}

}  // namespace penstock::tool
