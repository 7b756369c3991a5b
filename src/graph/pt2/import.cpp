// Imports an exported program: version, inputs and slots, nodes, outputs.
#include "graph/pt2/import.h"

#include "base/text.h"
#include "graph/passes/passes.h"
#include "graph/pt2/fields.h"
#include "graph/pt2/nodes.h"

#include <penstock/base/error.h>
#include <penstock/graph/pt2.h>

namespace penstock::graph {
namespace {

using c10::IValue;

const std::string kRecord = "models/model.json";

void check_version(const JsonValue& program) {
  const JsonValue& version = field(program, "schema_version", kRecord);
  const std::int64_t major = integer_at(field(version, "major", kRecord), kRecord);
  const std::int64_t minor = integer_at(field(version, "minor", kRecord), kRecord);
  if (major != kPt2SchemaMajor) {
    throw UsageError(str_cat("the archive has schema version ", major, ".", minor, ", but only version ",
                             kPt2SchemaMajor, " is supported"),
                     {}, "export the model with the torch version that Penstock is built with");
  }
}

class ProgramReader {
 public:
  ProgramReader(const JsonValue& program, const WeightLocations& locations)
      : program_(program), locations_(locations), nodes_(graph_) {}

  Graph read() {
    check_version(program_);
    const JsonValue& module = field(program_, "graph_module", kRecord);
    scope_.graph = &field(module, "graph", kRecord);
    object_at(*scope_.graph, kRecord);
    const JsonValue& signature = field(module, "signature", kRecord);
    for (const JsonValue& spec : array_at(field(signature, "input_specs", kRecord), kRecord))
      read_input(spec);
    nodes_.read_nodes(scope_, kRecord);
    for (const JsonValue& spec : array_at(field(signature, "output_specs", kRecord), kRecord))
      read_output(spec);
    read_structures(module);
    read_ranges();
    try {
      check_graph(graph_);
    } catch (const UsageError& error) {
      fail_at(kRecord, error.message());
    }
    assign_storage(graph_);
    join_overlapping();
    return std::move(graph_);
  }

 private:
  void read_input(const JsonValue& json) {
    const auto [kind, value] = choice_at(json, kRecord);
    const JsonValue& spec = *value;
    if (kind == "parameter") {
      add_slot(Slot::Kind::Parameter, spec, "parameter_name", true);
    } else if (kind == "buffer") {
      add_slot(Slot::Kind::Buffer, spec, "buffer_name", bool_at(field(spec, "persistent", kRecord), kRecord));
    } else if (kind == "tensor_constant") {
      add_slot(Slot::Kind::Constant, spec, "tensor_constant_name", false);
    } else if (kind == "user_input") {
      add_user_input(field(spec, "arg", kRecord));
    } else if (kind == "constant_input") {
      const std::string name = string_at(field(spec, "name", kRecord), kRecord);
      const Arg arg = nodes_.read_arg(scope_, field(spec, "value", kRecord), kRecord);
      add_constant_input(name, arg);
    } else {
      throw UsageError("the model has an input of kind " + kind + ", which is not supported", {},
                       "graphs accept tensors, numbers and strings");
    }
  }

  void add_slot(Slot::Kind kind, const JsonValue& spec, const char* name_field, bool persistent) {
    const std::string value = string_at(field(field(spec, "arg", kRecord), "name", kRecord), kRecord);
    const std::string name = string_at(field(spec, name_field, kRecord), kRecord);
    const auto location = locations_.find(name);
    if (location == locations_.end())
      fail_at(kRecord, "the archive does not contain the tensor " + quote(name, 200));
    if (location->second.pickled) {
      throw UsageError("the tensor " + quote(name, 200) + " is pickled, which only Python can read", {},
                       "export plain strided tensors on the CPU");
    }
    for (Slot& slot : graph_.slots) {
      // A tied weight is one slot with several names.
      if (slot.kind != kind || !locations_.at(slot.names[0]).same_tensor(location->second)) continue;
      slot.names.push_back(name);
      nodes_.bind(scope_, value, {slot.value}, kRecord);
      return;
    }
    const ValueId id = nodes_.define(scope_, value, ValueType::Tensor, kRecord);
    graph_.value(id).meta = location->second.meta;
    graph_.slots.push_back({.kind = kind,
                            .value = id,
                            .names = {name},
                            .requires_grad = kind == Slot::Kind::Parameter && location->second.requires_grad,
                            .persistent = persistent});
  }

  void add_user_input(const JsonValue& arg) {
    const auto [kind, value] = choice_at(arg, kRecord);
    if (kind == "as_tensor") {
      const std::string name = string_at(field(*value, "name", kRecord), kRecord);
      graph_.inputs.push_back({nodes_.define(scope_, name, ValueType::Tensor, kRecord), std::nullopt});
      return;
    }
    if (kind == "as_sym_int") {
      const auto [variant, name] = choice_at(*value, kRecord);
      if (variant == "as_name") {
        graph_.inputs.push_back(
            {nodes_.define(scope_, string_at(*name, kRecord), ValueType::Int, kRecord), std::nullopt});
        return;
      }
    }
    add_constant_input(str_cat("input_", graph_.inputs.size()), nodes_.read_arg(scope_, arg, kRecord));
  }

  void add_constant_input(const std::string& name, const Arg& arg) {
    if (!arg.constant() || arg.constant()->isList())
      fail_at(kRecord, "input " + quote(name) + " is not a plain constant");
    const IValue& constant = *arg.constant();
    const ValueType type = constant.isDouble() ? ValueType::Float
                           : constant.isBool() ? ValueType::Bool
                                               : ValueType::Int;
    graph_.inputs.push_back({nodes_.define(scope_, name, type, kRecord), constant});
  }

  void read_output(const JsonValue& json) {
    const auto [kind, value] = choice_at(json, kRecord);
    if (kind == "user_output" || kind == "loss_output") {
      const JsonValue& arg = field(*value, "arg", kRecord);
      Arg output = kind == "user_output" ? nodes_.read_arg(scope_, arg, kRecord) : named(arg);
      if (output.list()) fail_at(kRecord, "list outputs are not supported");
      graph_.outputs.push_back(std::move(output));
    } else if (kind == "buffer_mutation" || kind == "parameter_mutation") {
      const std::string name = string_at(
          field(*value, kind == "buffer_mutation" ? "buffer_name" : "parameter_name", kRecord), kRecord);
      const Arg from = named(field(*value, "arg", kRecord));
      for (const Slot& slot : graph_.slots) {
        if (std::find(slot.names.begin(), slot.names.end(), name) == slot.names.end()) continue;
        graph_.mutations.push_back({slot.value, tensor_of(from)});
        return;
      }
      fail_at(kRecord, "an output writes " + quote(name, 200) + ", which is not a buffer or parameter");
    } else if (kind == "user_input_mutation") {
      const Arg target =
          nodes_.lookup(scope_, string_at(field(*value, "user_input_name", kRecord), kRecord), kRecord);
      graph_.mutations.push_back({tensor_of(target), tensor_of(named(field(*value, "arg", kRecord)))});
    } else {
      throw UsageError("the model has an output of kind " + kind + ", which is not supported", {},
                       "export the forward pass only");
    }
  }

  //! Gives weights that are slices of one tensor the same storage.
  void join_overlapping() {
    std::map<std::string, std::vector<const Slot*>> by_record;
    for (const Slot& slot : graph_.slots) {
      const WeightLocation& location = locations_.at(slot.names[0]);
      auto& others = by_record[location.record];
      for (const Slot* other : others) {
        if (!location.overlaps(locations_.at(other->names[0]))) continue;
        const auto from = graph_.value(slot.value).storage, to = graph_.value(other->value).storage;
        for (Value& value : graph_.values) {
          if (value.storage == from) value.storage = to;
        }
      }
      others.push_back(&slot);
    }
  }

  Arg named(const JsonValue& arg) const {
    return nodes_.lookup(scope_, string_at(field(arg, "name", kRecord), kRecord), kRecord);
  }

  ValueId tensor_of(const Arg& arg) const {
    if (!arg.value() || graph_.value(*arg.value()).type != ValueType::Tensor)
      fail_at(kRecord, "a mutation is not a tensor");
    return *arg.value();
  }

  void read_structures(const JsonValue& module) {
    NamedTuples tuples;
    if (const JsonValue* fields = optional_field(module, "treespec_namedtuple_fields", kRecord)) {
      for (const auto& [name, tuple] : object_at(*fields, kRecord)) {
        for (const JsonValue& item : array_at(field(tuple, "field_names", kRecord), kRecord)) {
          tuples[name].push_back(string_at(item, kRecord));
        }
      }
    }
    for (const JsonValue& entry : array_at(field(module, "module_call_graph", kRecord), kRecord)) {
      if (!string_at(field(entry, "fqn", kRecord), kRecord).empty()) continue;
      const JsonValue& signature = field(entry, "signature", kRecord);
      graph_.input_structure =
          pt2_structure(string_at(field(signature, "in_spec", kRecord), kRecord), tuples, kRecord);
      graph_.output_structure =
          pt2_structure(string_at(field(signature, "out_spec", kRecord), kRecord), tuples, kRecord);
      return;
    }
    fail_at(kRecord, "the module call graph has no root");
  }

  void read_ranges() {
    const JsonValue* ranges = optional_field(program_, "range_constraints", kRecord);
    if (!ranges) return;
    for (const auto& [symbol, range] : object_at(*ranges, kRecord)) {
      SymbolRange read{.symbol = symbol};
      if (const JsonValue* min = optional_field(range, "min_val", kRecord))
        read.min = integer_at(*min, kRecord);
      if (const JsonValue* max = optional_field(range, "max_val", kRecord))
        read.max = integer_at(*max, kRecord);
      graph_.symbols.push_back(std::move(read));
    }
    std::sort(graph_.symbols.begin(), graph_.symbols.end(),
              [](const SymbolRange& a, const SymbolRange& b) { return a.symbol < b.symbol; });
  }

  const JsonValue& program_;
  const WeightLocations& locations_;
  Graph graph_;
  Pt2Nodes nodes_;
  Pt2Nodes::Scope scope_;
};

}  // namespace

std::int64_t WeightLocation::span() const {
  if (strides.size() != meta.sizes.size()) return -1;
  std::int64_t count = 1;
  for (const Dim& dim : meta.sizes) {
    if (dim.size == 0) return 0;
  }
  for (std::size_t i = 0; i < strides.size(); ++i) {
    std::int64_t reach = 0;
    if (meta.sizes[i].size < 0 || strides[i] < 0 ||
        __builtin_mul_overflow(meta.sizes[i].size - 1, strides[i], &reach) ||
        __builtin_add_overflow(count, reach, &count)) {
      return -1;
    }
  }
  return count;
}

bool WeightLocation::overlaps(const WeightLocation& other) const {
  const auto end = [](const WeightLocation& location) {
    std::int64_t sum = 0;
    return __builtin_add_overflow(location.offset, location.span(), &sum) ? location.offset : sum;
  };
  return record == other.record && meta.dtype == other.meta.dtype && offset < end(other) &&
         other.offset < end(*this);
}

void read_weight_locations(const JsonValue& config, const std::string& folder, const std::string& file,
                           WeightLocations& locations) {
  for (const auto& [name, entry] : object_at(field(config, "config", file), file)) {
    const std::string here = file + ", " + name;
    WeightLocation location{.record = folder + string_at(field(entry, "path_name", here), here)};
    location.pickled = bool_at(field(entry, "use_pickle", here), here);
    const JsonValue* meta = optional_field(entry, "tensor_meta", here);
    if (!meta) location.pickled = true;
    if (meta) {
      location.meta = pt2_meta(*meta, here);
      location.requires_grad = bool_at(field(*meta, "requires_grad", here), here);
      location.offset = pt2_dim(field(*meta, "storage_offset", here), here).size;
      for (const JsonValue& stride : array_at(field(*meta, "strides", here), here)) {
        location.strides.push_back(pt2_dim(stride, here).size);
      }
    }
    if (!locations.emplace(name, std::move(location)).second) fail_at(here, "the tensor is listed twice");
  }
}

Graph import_program(const JsonValue& program, const WeightLocations& locations) {
  return ProgramReader(program, locations).read();
}

}  // namespace penstock::graph
