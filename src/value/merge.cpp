// Merges the values of chunks.
#include "base/text.h"
#include "value/chunk_rules.h"
#include "value/distributed_values.h"
#include "value/kind_name.h"

#include <penstock/base/error.h>
#include <penstock/value/microbatch.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

namespace penstock::value {
namespace {

using c10::IValue;

IValue add(const IValue& a, const IValue& b) {
  if (a.isTensor() && b.isTensor()) return a.toTensor() + b.toTensor();
  if (a.isTensor()) return a.toTensor() + b.toScalar();
  if (b.isTensor()) return b.toTensor() + a.toScalar();
  if (a.isInt() && b.isInt()) return a.toInt() + b.toInt();
  if (a.isScalar() && b.isScalar()) return a.toScalar().toDouble() + b.toScalar().toDouble();
  throw UsageError("values of kinds " + kind_name(a) + " and " + kind_name(b) + " cannot be summed");
}

IValue sum_of(const std::vector<IValue>& values) {
  IValue total = values.front();
  for (std::size_t i = 1; i < values.size(); ++i) total = add(total, values[i]);
  return total;
}

IValue join_leaves(const std::vector<IValue>& values, std::int64_t dim, const BatchRows* batch,
                   const ErrorContext& context) {
  if (const Splitter* splitter = find_splitter(values.front())) {
    if (splitter->merge) return splitter->merge(values);
    throw UsageError("the registered splitter of this type has no `merge`", context);
  }
  std::vector<at::Tensor> tensors;
  for (const IValue& value : values) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().dim() == 0) {
      throw UsageError("a value of kind " + kind_name(value) + (value.isTensor() ? " without dims" : "") +
                           " cannot be concatenated",
                       context, "use a Reducer or Replicate");
    }
    tensors.push_back(value.toTensor());
  }
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].dim() == tensors[0].dim()) continue;
    throw ShapeError(str_cat("chunk 0 has ", tensors[0].dim(), " dims, chunk ", i, " has ", tensors[i].dim()),
                     context);
  }
  if (dim < -tensors[0].dim() || dim >= tensors[0].dim()) {
    throw ShapeError(str_cat("tensors of ", tensors[0].dim(), " dims cannot be concatenated along dim ", dim),
                     context);
  }
  for (const at::Tensor& tensor : tensors) {
    if (const DistributedValues* distributed = distributed_values(tensor))
      return distributed->merge(tensors, dim, batch, context);
  }
  return batch != nullptr ? cat_rows(tensors, dim, *batch) : at::cat(tensors, dim);
}

IValue agree(const std::vector<IValue>& values, const ErrorContext& context) {
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (leaves_equal(values[0], values[i])) continue;
    throw UsageError(str_cat("chunks 0 and ", i, " differ in a value that is not split"), context,
                     "use a TensorChunkSpec or a Reducer for it");
  }
  return values.front();
}

IValue merge(const std::vector<IValue>& chunks, const std::optional<ChunkSpec>& spec,
             const BatchRows* batch) {
  if (chunks.empty())
    throw UsageError("no chunks to merge", {}, "pass the result of each microbatch, at least one");
  std::vector<FlatTree> flats;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    flats.push_back(flatten(chunks[i]));
    if (flats[i].structure == flats[0].structure) continue;
    throw UsageError(str_cat("chunk ", i, " is ", to_string(flats[i].structure), ", chunk 0 is ",
                             to_string(flats[0].structure)),
                     {}, "return values of the same structure for every microbatch");
  }
  const std::vector<LeafRule> rules = leaf_rules(flats[0], spec, "chunk");
  const std::vector<std::string> paths = flats[0].structure.paths("chunk");
  std::vector<IValue> merged;
  for (std::size_t leaf = 0; leaf < rules.size(); ++leaf) {
    std::vector<IValue> values;
    for (const FlatTree& flat : flats) values.push_back(flat.leaves[leaf]);
    ErrorContext context;
    context.tensor = paths[leaf];
    if (const auto* split = std::get_if<TensorChunkSpec>(&rules[leaf])) {
      merged.push_back(join_leaves(values, split->dim, batch, context));
    } else if (const auto* reducer = std::get_if<Reducer>(&rules[leaf])) {
      merged.push_back(reducer->reduce(values));
    } else {
      merged.push_back(agree(values, context));
    }
  }
  return unflatten(merged, flats[0].structure);
}

}  // namespace

Reducer Reducer::sum() {
  return {sum_of};
}

Reducer Reducer::mean() {
  return {[](const std::vector<IValue>& values) -> IValue {
    const IValue total = sum_of(values);
    const auto count = static_cast<double>(values.size());
    if (total.isTensor()) return total.toTensor() / count;
    return total.toScalar().toDouble() / count;
  }};
}

Reducer Reducer::fold(IValue init, std::function<IValue(const IValue&, const IValue&)> step) {
  return {[init = std::move(init), step = std::move(step)](const std::vector<IValue>& values) {
    IValue result = init;
    for (const IValue& value : values) result = step(result, value);
    return result;
  }};
}

IValue merge_chunks(const std::vector<IValue>& chunks, const std::optional<ChunkSpec>& spec) {
  return merge(chunks, spec, nullptr);
}

IValue merge_chunks(const std::vector<IValue>& chunks, const std::optional<ChunkSpec>& spec,
                    const BatchRows& batch) {
  return merge(chunks, spec, &batch);
}

}  // namespace penstock::value
