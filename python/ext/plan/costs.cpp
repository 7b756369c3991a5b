// Reads the costs of penstock.plan (dataclasses) and makes them.
#include "base/text.h"
#include "plan/bindings.h"

#include <penstock/base/error.h>
#include <penstock/plan/costs.h>

#include <pybind11/stl.h>

#include <type_traits>

namespace penstock::python {
namespace {

using namespace py::literals;

template <class Value>
constexpr const char* kind_name() {
  if constexpr (std::is_same_v<Value, bool>) return "True or False";
  if constexpr (std::is_same_v<Value, std::string>) return "a str";
  return std::is_integral_v<Value> ? "a non-negative integer" : "a number";
}

//! Reads the attributes of a dataclass of penstock.plan.
class Fields {
 public:
  Fields(const py::handle& source, const char* type) : source_(source), type_(type) {
    if (py::isinstance(source, py::module_::import("penstock.plan").attr(type))) return;
    throw py::type_error(std::string("expected a ") + type + ", not " +
                         py::str(py::type::of(source).attr("__name__")).cast<std::string>());
  }

  py::object get(const char* name) const { return source_.attr(name); }

  template <class Value>
  void read(const char* name, Value& target) const {
    const py::object value = get(name);
    try {
      target = value.cast<Value>();
    } catch (const py::cast_error&) {
      const std::string problem = str_cat(type_, ".", name, " must be ", kind_name<Value>(), ", not ",
                                          py::repr(value).cast<std::string>());
      if (py::isinstance<py::int_>(value)) throw UsageError(problem);
      throw py::type_error(problem);
    }
  }
  void read(const char* name, std::optional<double>& target) const {
    if (get(name).is_none()) return;
    read(name, target.emplace());
  }

 private:
  py::handle source_;
  const char* type_;
};

plan::StageCosts stage_costs_of(const py::handle& source) {
  const Fields fields(source, "StageCosts");
  plan::StageCosts costs;
  fields.read("forward", costs.forward);
  fields.read("input", costs.input);
  fields.read("weight", costs.weight);
  fields.read("backward", costs.backward);
  fields.read("unshard", costs.unshard);
  fields.read("reshard", costs.reshard);
  fields.read("reduce_grad", costs.reduce_grad);
  fields.read("activation_bytes", costs.activation_bytes);
  fields.read("weight_bytes", costs.weight_bytes);
  fields.read("output_bytes", costs.output_bytes);
  fields.read("input_bytes", costs.input_bytes);
  fields.read("parameter_bytes", costs.parameter_bytes);
  fields.read("gradient_bytes", costs.gradient_bytes);
  fields.read("optimizer_bytes", costs.optimizer_bytes);
  fields.read("unsharded_bytes", costs.unsharded_bytes);
  fields.read("recompute", costs.recompute);
  return costs;
}

plan::Link link_of(const py::handle& source) {
  const Fields fields(source, "Link");
  plan::Link link;
  fields.read("latency", link.latency);
  fields.read("bandwidth", link.bandwidth);
  return link;
}

//! A key of `links` or `skip_bytes`.
std::pair<std::int64_t, std::int64_t> pair_of(const py::handle& key, const char* field) {
  try {
    return key.cast<std::pair<std::int64_t, std::int64_t>>();
  } catch (const py::cast_error&) {
    throw py::type_error(str_cat("a key of Costs.", field, " must be a pair of integers, not ",
                                 py::repr(key).cast<std::string>()));
  }
}

py::object merge_layers(const py::sequence& layers) {
  return to_python(plan::merge_layers(layers_of(layers)));
}

void check(const py::object& costs, std::int64_t stages, std::int64_t microbatches) {
  plan::check_costs(costs_of(costs), StageId(stages).value, MicrobatchId(microbatches).value);
}

}  // namespace

plan::Costs costs_of(const py::handle& source) {
  const Fields fields(source, "Costs");
  plan::Costs costs;
  for (const py::handle stage : fields.get("stages")) costs.stages.push_back(stage_costs_of(stage));
  costs.link = link_of(fields.get("link"));
  for (const auto& [key, link] : py::dict(fields.get("links"))) {
    const auto [from, to] = pair_of(key, "links");
    costs.links[{Rank(from), Rank(to)}] = link_of(link);
  }
  for (const auto& [key, bytes] : py::dict(fields.get("skip_bytes"))) {
    const auto [from, to] = pair_of(key, "skip_bytes");
    try {
      costs.skip_bytes[{StageId(from), StageId(to)}] = bytes.cast<std::uint64_t>();
    } catch (const py::cast_error&) {
      throw UsageError("a value of Costs.skip_bytes must be a non-negative integer, not " +
                       py::repr(bytes).cast<std::string>());
    }
  }
  fields.read("overlap", costs.overlap);
  fields.read("overhead", costs.overhead);
  return costs;
}

view::TimeUnit unit_of(const std::string& name) {
  if (name == "units") return view::TimeUnit::Units;
  if (name == "seconds") return view::TimeUnit::Seconds;
  throw UsageError("unknown unit of time " + quote(name), {}, "use 'seconds' or 'units'");
}

std::string_view to_string(view::TimeUnit unit) {
  return unit == view::TimeUnit::Seconds ? "seconds" : "units";
}

std::vector<plan::Layer> layers_of(const py::sequence& layers) {
  std::vector<plan::Layer> read;
  for (const py::handle source : layers) {
    const Fields fields(source, "Layer");
    plan::Layer layer;
    fields.read("name", layer.name);
    layer.costs = stage_costs_of(fields.get("costs"));
    read.push_back(std::move(layer));
  }
  return read;
}

py::object to_python(const plan::StageCosts& costs) {
  return py::module_::import("penstock.plan")
      .attr("StageCosts")(
          "forward"_a = costs.forward, "input"_a = costs.input, "weight"_a = costs.weight,
          "backward"_a = costs.backward, "unshard"_a = costs.unshard, "reshard"_a = costs.reshard,
          "reduce_grad"_a = costs.reduce_grad, "activation_bytes"_a = costs.activation_bytes,
          "weight_bytes"_a = costs.weight_bytes, "output_bytes"_a = costs.output_bytes,
          "input_bytes"_a = costs.input_bytes, "parameter_bytes"_a = costs.parameter_bytes,
          "gradient_bytes"_a = costs.gradient_bytes, "optimizer_bytes"_a = costs.optimizer_bytes,
          "unsharded_bytes"_a = costs.unsharded_bytes, "recompute"_a = costs.recompute);
}

void bind_costs(py::module_& module) {
  module.def("merge_layers", &merge_layers, "layers"_a);
  module.def("check_costs", &check, "costs"_a, "stages"_a, "microbatches"_a);
}

}  // namespace penstock::python
