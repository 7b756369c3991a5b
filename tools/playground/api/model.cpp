// Costs of stages and layers from the numbers that the user entered.
#include "api/model.h"

#include "base/number_text.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <cmath>
#include <limits>
#include <span>

namespace penstock::playground {
namespace {

constexpr int kLayersPerRank = 4;
constexpr double kMaxCostBytes = 1e14;  //!< the limit of cost files

std::vector<const Quantity*> quantities(const Model& model) {
  return {&model.forward,          &model.input,        &model.weight,
          &model.activation_bytes, &model.weight_bytes, &model.parameter_bytes};
}

double value_of(const Quantity& quantity, int unit, int ranks, int units) {
  if (quantity.list.empty()) return quantity.per_rank * ranks / units;
  if (quantity.list.size() != static_cast<std::size_t>(units)) {
    throw UsageError(
        str_cat(quantity.name, " has ", quantity.list.size(), " values, but there are ", units, " stages"),
        {}, "enter one value per stage, or a single value for the share of each rank");
  }
  return quantity.list[static_cast<std::size_t>(unit)];
}

std::uint64_t bytes_of(const Quantity& quantity, int unit, int ranks, int units) {
  const double value = value_of(quantity, unit, ranks, units);
  if (!(value >= 0 && value <= kMaxCostBytes))
    throw UsageError(quantity.name + " must be between 0 and 1e14");
  return static_cast<std::uint64_t>(std::llround(value));
}

plan::StageCosts unit_costs(const Model& model, int unit, int ranks, int units) {
  plan::StageCosts costs;
  costs.forward = value_of(model.forward, unit, ranks, units);
  costs.input = value_of(model.input, unit, ranks, units);
  costs.weight = value_of(model.weight, unit, ranks, units);
  costs.activation_bytes = bytes_of(model.activation_bytes, unit, ranks, units);
  costs.weight_bytes = bytes_of(model.weight_bytes, unit, ranks, units);
  costs.parameter_bytes = bytes_of(model.parameter_bytes, unit, ranks, units);
  costs.output_bytes = model.output_bytes;
  costs.input_bytes = unit > 0 ? model.output_bytes : 0;  // what recomputation starts from
  return costs;
}

plan::Costs without_stages(const Model& model) {
  plan::Costs costs;
  costs.link = model.link;
  costs.overlap = model.overlap;
  return costs;
}

void append_line(std::string& text, const char* key, double value) {
  text += key;
  text += " = ";
  append_shortest(text, value);
  text += '\n';
}

void append_line(std::string& text, const char* key, std::uint64_t value) {
  text += str_cat(key, " = ", value, "\n");
}

void append_stages(std::string& text, const plan::StageCosts& stage, std::size_t count) {
  text += "\n[[stages]]\n";
  append_line(text, "count", static_cast<std::uint64_t>(count));
  append_line(text, "forward", stage.forward);
  append_line(text, "input", stage.input);
  append_line(text, "weight", stage.weight);
  append_line(text, "activation_bytes", stage.activation_bytes);
  append_line(text, "weight_bytes", stage.weight_bytes);
  append_line(text, "output_bytes", stage.output_bytes);
  append_line(text, "input_bytes", stage.input_bytes);
  append_line(text, "parameter_bytes", stage.parameter_bytes);
  if (stage.recompute) text += "recompute = true\n";
}

}  // namespace

plan::Costs stage_costs(const Model& model, int ranks, int units) {
  plan::Costs costs = without_stages(model);
  for (int unit = 0; unit < units; ++unit) costs.stages.push_back(unit_costs(model, unit, ranks, units));
  return costs;
}

std::vector<plan::Layer> layers_of(const Model& model, int ranks) {
  int units = ranks * kLayersPerRank;
  for (const Quantity* quantity : quantities(model)) {
    if (!quantity->list.empty()) units = static_cast<int>(quantity->list.size());
  }
  std::vector<plan::Layer> layers;
  for (int unit = 0; unit < units; ++unit)
    layers.push_back({str_cat("layer.", unit), unit_costs(model, unit, ranks, units)});
  return layers;
}

plan::Costs partitioned_costs(const Model& model, int ranks, const std::vector<int>& first_layer) {
  const std::vector<plan::Layer> layers = layers_of(model, ranks);
  plan::Costs costs = without_stages(model);
  for (std::size_t s = 0; s + 1 < first_layer.size(); ++s) {
    const int from = first_layer[s], to = first_layer[s + 1];
    if (from < 0 || from >= to || to > static_cast<int>(layers.size()))
      throw UsageError("the partition does not match the layers of the model");
    costs.stages.push_back(plan::merge_layers(
        std::span(layers).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from))));
  }
  return costs;
}

std::string to_toml(const plan::Costs& costs) {
  std::string text = "# Times in seconds per microbatch.\n";
  append_line(text, "overlap", costs.overlap);
  text += "\n[link]\n";
  append_line(text, "latency", costs.link.latency);
  if (std::isfinite(costs.link.bandwidth)) append_line(text, "bandwidth", costs.link.bandwidth);
  for (std::size_t first = 0; first < costs.stages.size();) {
    std::size_t last = first + 1;
    while (last < costs.stages.size() && costs.stages[last] == costs.stages[first]) ++last;
    append_stages(text, costs.stages[first], last - first);
    first = last;
  }
  return text;
}

}  // namespace penstock::playground
