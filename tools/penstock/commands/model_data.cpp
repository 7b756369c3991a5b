// Files of examples in, outputs by name out.
#include "model_data.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/graph/module.h>

#include <ATen/ops/tensor.h>

#include <algorithm>

namespace penstock::tool {
namespace {

using c10::IValue;

//! The batch that the model was exported with, if it is fixed.
std::optional<std::int64_t> fixed_batch(const Graph& graph) {
  for (const GraphInput& input : graph.inputs) {
    const auto& meta = graph.value(input.value).meta;
    if (input.baked || !meta || meta->sizes.empty()) continue;
    return meta->sizes[0].expression.empty() ? std::optional(meta->sizes[0].size) : std::nullopt;
  }
  return std::nullopt;
}

bool is_number(const Graph& graph, const Arg& leaf) {
  const ValueId* id = leaf.value();
  return id && graph.value(*id).meta && graph.value(*id).meta->sizes.empty();
}

}  // namespace

int ModelData::microbatches_for(const Graph& graph, std::optional<std::int64_t> asked, int ranks) const {
  const std::optional<std::int64_t> batch = fixed_batch(graph);
  if (asked) {
    if (*asked > rows) {
      throw UsageError(std::to_string(rows) + " examples cannot be cut into " + std::to_string(*asked) +
                       " microbatches");
    }
    if (batch && *batch * *asked != rows) {
      throw UsageError(
          "the model was exported with a fixed batch of " + std::to_string(*batch) + ", and " +
              std::to_string(rows) + " examples in " + std::to_string(*asked) + " microbatches are others",
          {}, "give " + std::to_string(*batch * *asked) + " examples, or export it with a dynamic batch");
    }
    return static_cast<int>(*asked);
  }
  if (!batch) return static_cast<int>(std::min<std::int64_t>(rows, ranks));
  if (*batch == 0 || rows % *batch != 0) {
    throw UsageError("the model was exported with a fixed batch of " + std::to_string(*batch) + ", and " +
                         std::to_string(rows) + " examples are no multiple of it",
                     {}, "pass a multiple of it, or export the model with a dynamic batch");
  }
  return static_cast<int>(rows / *batch);
}

std::vector<IValue> ModelData::example(int microbatches) const {
  const std::int64_t count = chunk_sizes(rows, microbatches).front();
  std::vector<IValue> first;
  for (const IValue& leaf : leaves) {
    first.push_back(leaf.isTensor() && leaf.toTensor().dim() > 0 ? IValue(leaf.toTensor().narrow(0, 0, count))
                                                                 : leaf);
  }
  return first;
}

ModelData read_model_data(const Graph& graph, const std::string& path) {
  const SafetensorsFile file(path);
  const std::vector<std::string> paths = graph.input_paths();
  std::vector<std::string> there, missing;
  for (const SafetensorsEntry& entry : file.entries()) there.push_back(entry.name);
  ModelData data;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    const Value& value = graph.value(input.value);
    if (input.baked) {
      data.leaves.push_back(*input.baked);
      continue;
    }
    if (value.type != ValueType::Tensor) {
      throw UsageError(
          "the model's input " + quote(value.name) + " is a number, which a file of tensors cannot give", {},
          "export the model with it as a constant");
    }
    const std::string name = file.has(value.name) ? value.name : paths[i];
    if (!file.has(name)) {
      missing.push_back(value.name);
      data.leaves.emplace_back();
      continue;
    }
    data.leaves.emplace_back(file.load(name));
    const at::Tensor& tensor = data.leaves.back().toTensor();
    if (tensor.dim() == 0) throw UsageError("the tensor " + quote(name) + " has no dim that counts examples");
    if (data.rows != 0 && tensor.size(0) != data.rows) {
      throw UsageError("the tensor " + quote(name) + " has " + std::to_string(tensor.size(0)) +
                       " examples, others " + std::to_string(data.rows));
    }
    data.rows = tensor.size(0);
  }
  if (!missing.empty()) {
    throw UsageError(quote(path, 200) + " has no tensor for the model's input " + join(missing, ", "), {},
                     "it has " + (there.empty() ? std::string("none") : join(there, ", ")));
  }
  if (data.rows == 0) throw UsageError(quote(path, 200) + " has no examples");
  const IValue tree = unflatten(data.leaves, graph.input_structure);
  data.args = tree.toTupleRef().elements()[0].toTupleRef().elements().vec();
  for (const auto& entry : tree.toTupleRef().elements()[1].toGenericDict())
    data.kwargs.emplace(entry.key().toStringRef(), entry.value());
  return data;
}

std::map<std::string, at::Tensor> named_outputs(const Graph& graph, const IValue& outputs,
                                                const std::vector<std::int64_t>& rows) {
  const std::vector<IValue> leaves = flatten(outputs).leaves;
  const std::vector<std::string> paths = graph.output_paths();
  std::map<std::string, at::Tensor> named;
  for (std::size_t i = 0; i < leaves.size() && i < paths.size(); ++i) {
    if (!leaves[i].isTensor() || !leaves[i].toTensor().defined()) continue;
    at::Tensor tensor = leaves[i].toTensor();
    if (is_number(graph, graph.outputs[i]) && tensor.dim() == 1) {
      const at::Tensor weights = at::tensor(rows, tensor.options().dtype(at::kDouble));
      tensor = ((tensor.to(at::kDouble) * weights).sum() / weights.sum()).to(tensor.scalar_type());
    }
    named.emplace(paths[i], tensor);
  }
  if (named.empty()) throw UsageError("the model gives no tensor");
  return named;
}

}  // namespace penstock::tool
