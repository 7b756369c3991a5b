// The target of a pass is the tuple (target of the model, which rows count).
#include "train/loop/counted_rows.h"

#include "train/model/auto_plan.h"
#include "train/model/cross_entropy.h"

#include <penstock/value/microbatch.h>
#include <penstock/value/tree.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>

#include <algorithm>

namespace penstock::train {
namespace {

struct CountedTarget {
  c10::IValue target;
  std::int64_t rows = 0, count = 0;

  explicit CountedTarget(const c10::IValue& pair) : target(pair.toTupleRef().elements()[0]) {
    const at::Tensor counts = pair.toTupleRef().elements()[1].toTensor();
    rows = counts.size(0);
    count = counts.sum().item<std::int64_t>();
  }
};

// Returns the part of each tensor that belongs to the first `count` of `rows` rows. A tensor may have several
// entries per row in dim 0.
c10::IValue first_rows(const c10::IValue& tree, std::int64_t rows, std::int64_t count) {
  if (rows == count) return tree;
  return value::map_tensors(tree, [&](const at::Tensor& tensor) {
    const bool has_rows = tensor.dim() > 0 && tensor.size(0) > 0 && tensor.size(0) % rows == 0;
    return has_rows ? tensor.narrow(0, 0, tensor.size(0) / rows * count) : tensor;
  });
}

// The argument of this name.
c10::IValue& argument(Batch& batch, const std::string& name) {
  const auto keyword = batch.kwargs.find(name);
  if (keyword != batch.kwargs.end()) return keyword->second;
  const auto index = std::find(batch.names.begin(), batch.names.end(), name) - batch.names.begin();
  return batch.args.at(static_cast<std::size_t>(index));
}

// Changes the labels from which the model computes its own loss: those of padding rows are ignored. A
// microbatch without valid labels has weight 0; its labels become 0, because its loss would be 0/0, whose
// gradient is NaN also if it is multiplied by 0.
void replace_labels(Batch& batch, std::int64_t count, std::int64_t size, int microbatches) {
  c10::IValue& value = argument(batch, *batch.labels);
  const at::Tensor labels = value.toTensor().clone();
  labels.narrow(0, count, size - count).fill_(kIgnoredLabel);
  const at::Tensor valid = batch.target.toTensor().ne(kIgnoredLabel);
  std::int64_t begin = 0;
  for (const std::int64_t rows : value::chunk_sizes(size, microbatches)) {
    const std::int64_t counted = std::clamp<std::int64_t>(count - begin, 0, rows);
    if (!valid.narrow(0, begin, counted).any().item<bool>()) labels.narrow(0, begin, rows).fill_(0);
    begin += rows;
  }
  value = labels;
}

// Pads a batch of `read` rows to `size` rows with copies of the last one.
PassBatch padded(Batch batch, std::int64_t read, std::int64_t count, std::int64_t size, int microbatches) {
  if (read < size) {
    const at::Tensor index = at::arange(size, at::kLong).clamp_max(read - 1);
    const auto fill = [&](const c10::IValue& tree) {
      return value::map_tensors(tree, [&](const at::Tensor& tensor) {
        return tensor.dim() > 0 && tensor.size(0) == read ? at::index_select(tensor, 0, index) : tensor;
      });
    };
    for (c10::IValue& arg : batch.args) arg = fill(arg);
    for (auto& [name, value] : batch.kwargs) value = fill(value);
    batch.target = fill(batch.target);
  }
  if (count == 0 && batch.tokens) batch.tokens = 0;
  batch.examples = count;
  if (batch.labels) replace_labels(batch, count, size, microbatches);
  return {std::move(batch), size};
}

}  // namespace

c10::IValue PassBatch::target() const {
  return c10::ivalue::Tuple::create({batch.target, at::arange(rows, at::kLong).lt(batch.examples)});
}

PassBatch training_pass(const DataSource& data, const RunOptions& options, std::int64_t step, int replica,
                        std::int64_t part) {
  const Rows all = rows_of(options, replica, part);
  const std::int64_t last = std::min(all.end, data.training_rows(step, options.batch));
  const std::int64_t count = std::max<std::int64_t>(last - all.begin, 0);
  // A pass without rows of its own runs with row 0, which exists.
  const Rows read = count > 0 ? Rows{all.begin, last} : Rows{0, 1};
  return padded(data.training(step, options.batch, read), read.end - read.begin, count, all.end - all.begin,
                options.parallel.microbatches);
}

PassBatch validation_pass(const DataSource& data, Rows rows, std::int64_t size, int microbatches) {
  const std::int64_t count = rows.end - rows.begin;
  const Rows read = count > 0 ? rows : Rows{0, 1};
  return padded(data.validation(read), read.end - read.begin, count, size, microbatches);
}

runtime::LossFunction loss_of_counted(runtime::LossFunction loss) {
  return [loss = std::move(loss)](const c10::IValue& output, const c10::IValue& target,
                                  const value::Kwargs& more) {
    const CountedTarget counted(target);
    if (counted.count == 0) return loss(output, counted.target, more);  // the result is not used
    return loss(first_rows(output, counted.rows, counted.count),
                first_rows(counted.target, counted.rows, counted.count), more);
  };
}

runtime::LossReduction reduction_of_counted(runtime::LossReduction reduction) {
  return runtime::LossReduction::weighted([reduction = std::move(reduction)](const c10::IValue& target) {
    const CountedTarget counted(target);
    if (counted.count == 0) return 0.0;
    return reduction.weight_of(first_rows(counted.target, counted.rows, counted.count))
        .value_or(static_cast<double>(counted.count));
  });
}

}  // namespace penstock::train
