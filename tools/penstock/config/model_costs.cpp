// Reads the JSON of `penstock costs`.
#include "config/model_costs.h"

#include "base/io/json_reader.h"

#include <penstock/base/error.h>

namespace penstock::tool {
namespace {

constexpr const char* kWhere = "penstock costs --json";

std::int64_t integer_field(const JsonValue& object, const char* name) {
  return integer_at(field(object, name, kWhere), kWhere);
}

std::uint64_t bytes_field(const JsonValue& object, const char* name) {
  return static_cast<std::uint64_t>(integer_field(object, name));
}

double number_field(const JsonValue& object, const char* name) {
  return real_at(field(object, name, kWhere), kWhere);
}

const JsonArray& list_field(const JsonValue& object, const char* name) {
  return array_at(field(object, name, kWhere), kWhere);
}

plan::Layer read_layer(const JsonValue& value) {
  plan::Layer layer{.name = string_at(field(value, "name", kWhere), kWhere), .costs = {}};
  plan::StageCosts& costs = layer.costs;
  costs.forward = number_field(value, "forward");
  costs.input = number_field(value, "input");
  costs.weight = number_field(value, "weight");
  costs.activation_bytes = bytes_field(value, "activation_bytes");
  costs.input_bytes = bytes_field(value, "input_bytes");
  costs.output_bytes = bytes_field(value, "output_bytes");
  costs.parameter_bytes = bytes_field(value, "parameter_bytes");
  costs.gradient_bytes = bytes_field(value, "gradient_bytes");
  costs.optimizer_bytes = bytes_field(value, "optimizer_bytes");
  return layer;
}

plan::RecomputableModule read_module(const JsonValue& value) {
  plan::RecomputableModule module{.name = string_at(field(value, "name", kWhere), kWhere)};
  for (const JsonValue& part : list_field(value, "parts"))
    module.parts.push_back({.layer = static_cast<int>(integer_field(part, "layer")),
                            .bytes = bytes_field(part, "bytes"),
                            .time = number_field(part, "time")});
  return module;
}

}  // namespace

ModelCosts read_model_costs(const std::string& text) {
  const JsonValue root = parse_json(text, kWhere);
  ModelCosts costs;
  costs.file.time_unit = view::TimeUnit::Seconds;
  for (const JsonValue& layer : list_field(root, "layers")) {
    costs.file.layers.push_back(read_layer(layer));
    costs.first_operators.push_back(integer_field(layer, "first_operator"));
  }
  for (const JsonValue& module : list_field(root, "modules")) costs.modules.push_back(read_module(module));
  costs.microbatch_rows = integer_field(root, "microbatch_rows");
  costs.fixed_rows = bool_at(field(root, "fixed_rows", kWhere), kWhere);
  return costs;
}

}  // namespace penstock::tool
