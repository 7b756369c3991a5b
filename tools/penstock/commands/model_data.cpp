// Reads examples for a model and names its outputs.
#include "commands/model_data.h"

#include "base/text.h"
#include "cli/paths.h"
#include "train/preflight/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/graph/graph_module.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

namespace penstock::tool {
namespace {

using c10::IValue;

//! The batch size that the model was exported with, if it is static.
std::optional<std::int64_t> fixed_batch(const graph::Graph& graph) {
  for (const graph::GraphInput& input : graph.inputs) {
    const auto& meta = graph.value(input.value).meta;
    if (input.constant || !meta || meta->sizes.empty()) continue;
    return meta->sizes[0].expression.empty() ? std::optional(meta->sizes[0].size) : std::nullopt;
  }
  return std::nullopt;
}

void fill_arguments(ModelData& data, const graph::Graph& graph) {
  const IValue tree = unflatten(data.leaves, graph.input_structure);
  data.args = tree.toTupleRef().elements()[0].toTupleRef().elements().vec();
  for (const auto& entry : tree.toTupleRef().elements()[1].toGenericDict())
    data.kwargs.insert_or_assign(entry.key().toStringRef(), entry.value());
}

at::Tensor weighted_mean(const at::Tensor& values, const std::vector<std::int64_t>& rows) {
  const at::Tensor weights = at::tensor(rows, values.options().dtype(at::kDouble));
  return ((values.to(at::kDouble) * weights).sum() / weights.sum()).to(values.scalar_type());
}

bool is_number(const graph::Graph& graph, const graph::Arg& leaf) {
  const graph::ValueId* id = leaf.value();
  return id && graph.value(*id).meta && graph.value(*id).meta->sizes.empty();
}

}  // namespace

std::vector<IValue> rows_of(const std::vector<IValue>& leaves, std::int64_t begin, std::int64_t count) {
  std::vector<IValue> rows;
  for (const IValue& leaf : leaves) {
    const bool has_rows = leaf.isTensor() && leaf.toTensor().dim() > 0;
    rows.push_back(has_rows ? IValue(leaf.toTensor().narrow(0, begin, count)) : leaf);
  }
  return rows;
}

int ModelData::microbatches_for(const graph::Graph& graph, std::optional<std::int64_t> requested,
                                int ranks) const {
  const std::optional<std::int64_t> batch = fixed_batch(graph);
  if (requested) {
    if (*requested > rows) {
      throw UsageError(str_cat(rows, " examples cannot be split into ", *requested, " microbatches"), {},
                       str_cat("use at most ", rows, " microbatches"));
    }
    if (batch && *batch * *requested != rows) {
      throw UsageError(
          str_cat("the model was exported with a fixed batch of ", *batch, ", which ", rows, " examples in ",
                  *requested, " microbatches do not match"),
          {}, str_cat("pass ", *batch * *requested, " examples, or export the model with a dynamic batch"));
    }
    return static_cast<int>(*requested);
  }
  if (!batch) return static_cast<int>(std::min<std::int64_t>(rows, ranks));
  if (*batch == 0 || rows % *batch != 0) {
    throw UsageError(str_cat("the model was exported with a fixed batch of ", *batch, ", and ", rows,
                             " examples are not a multiple of it"),
                     {}, "pass a multiple of it, or export the model with a dynamic batch");
  }
  return static_cast<int>(rows / *batch);
}

ModelData ModelData::part(const graph::Graph& graph, int ranks, int rank) const {
  if (ranks == 1) return *this;
  const std::int64_t unit = std::max<std::int64_t>(1, fixed_batch(graph).value_or(1));
  if (rows / unit < ranks) {
    throw UsageError(str_cat(rows, " examples", (unit == 1 ? "" : str_cat(" in batches of ", unit)),
                             " cannot be divided among ", ranks, " data-parallel ranks"),
                     {}, str_cat("use at most --dp ", rows / unit, ", or pass more examples"));
  }
  std::vector<std::int64_t> row_counts = value::chunk_sizes(rows / unit, ranks);
  for (std::int64_t& count : row_counts) count *= unit;
  row_counts.back() += rows % unit;  // more than the model accepts: microbatches_for reports it
  ModelData result;
  result.rows = row_counts[static_cast<std::size_t>(rank)];
  const std::int64_t begin = std::accumulate(row_counts.begin(), row_counts.begin() + rank, std::int64_t{0});
  result.leaves = rows_of(leaves, begin, result.rows);
  fill_arguments(result, graph);
  return result;
}

std::vector<IValue> ModelData::example(int microbatches, c10::Device device) const {
  std::vector<IValue> first = rows_of(leaves, 0, value::chunk_sizes(rows, microbatches).front());
  for (IValue& leaf : first)
    if (leaf.isTensor()) leaf = leaf.toTensor().to(device);
  return first;
}

ModelData read_model_data(const graph::Graph& graph, const std::string& path) {
  check_input_file(path, ".safetensors");
  const checkpoint::SafetensorsFile file = as_usage(
      [&] { return checkpoint::SafetensorsFile(path); },
      quote(path, 200) + " must be a file written by safetensors.torch.save_file({\"input\": …}, path)");
  const std::vector<std::string> paths = graph.input_paths();
  std::vector<std::string> there, missing;
  for (const checkpoint::SafetensorsEntry& entry : file.entries()) there.push_back(entry.name);
  ModelData data;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const graph::GraphInput& input = graph.inputs[i];
    const graph::Value& value = graph.value(input.value);
    if (input.constant) {
      data.leaves.push_back(*input.constant);
      continue;
    }
    if (value.type != graph::ValueType::Tensor) {
      throw UsageError(
          "the model's input " + quote(value.name) + " is a number, which a safetensors file cannot contain",
          {}, "export the model with it as a constant");
    }
    const std::string name = file.has(value.name) ? value.name : paths[i];
    if (!file.has(name)) {
      missing.push_back(value.name);
      data.leaves.emplace_back();
      continue;
    }
    at::Tensor tensor = as_usage([&] { return file.load(name); });
    if (value.meta) tensor = with_dtype(tensor, value.meta->dtype, name);
    data.leaves.emplace_back(tensor);
    if (tensor.dim() == 0)
      throw UsageError("the tensor " + quote(name) + " has no example dim", {},
                       "add a first dim for the examples");
    if (data.rows != 0 && tensor.size(0) != data.rows) {
      throw UsageError(str_cat("the tensor ", quote(name), " has ", tensor.size(0),
                               " examples, but other tensors have ", data.rows),
                       {}, "store the same number of examples (dim 0) in every tensor");
    }
    data.rows = tensor.size(0);
  }
  if (!missing.empty()) {
    throw UsageError(quote(path, 200) + " has no tensor for the model's input " + join(missing, ", ") +
                         "; it has " + (there.empty() ? std::string("none") : join(there, ", ")),
                     {}, "name the tensors after the model's inputs");
  }
  if (data.rows == 0)
    throw UsageError(quote(path, 200) + " has no examples", {}, "store at least one row in every tensor");
  fill_arguments(data, graph);
  return data;
}

std::map<std::string, at::Tensor> named_outputs(const graph::Graph& graph, const IValue& outputs,
                                                const std::vector<std::int64_t>& rows) {
  const std::vector<IValue> leaves = value::flatten(outputs).leaves;
  const std::vector<std::string> paths = graph.output_paths();
  std::map<std::string, at::Tensor> named;
  for (std::size_t i = 0; i < leaves.size() && i < paths.size(); ++i) {
    if (!leaves[i].isTensor() || !leaves[i].toTensor().defined()) continue;
    at::Tensor tensor = leaves[i].toTensor();
    if (is_number(graph, graph.outputs[i]) && tensor.dim() == 1) tensor = weighted_mean(tensor, rows);
    named.emplace(paths[i], tensor);
  }
  if (named.empty()) throw UsageError("the model has no tensor among its outputs");
  return named;
}

std::map<std::string, at::Tensor> join_outputs(const std::vector<std::map<std::string, at::Tensor>>& parts,
                                               const std::vector<std::int64_t>& rows) {
  if (parts.size() == 1) return parts[0];
  std::map<std::string, at::Tensor> joined;
  for (const auto& [name, first] : parts[0]) {
    std::vector<at::Tensor> tensors;
    for (const auto& part : parts) tensors.push_back(part.at(name));
    joined[name] = first.dim() == 0 ? weighted_mean(at::stack(tensors), rows) : at::cat(tensors);
  }
  return joined;
}

}  // namespace penstock::tool
