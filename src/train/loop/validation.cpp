// Validation batches have the shape of a training batch. Short ones are padded with rows that do not count.
#include "train/loop/validation.h"

#include "train/data/device_batch.h"

#include <penstock/value/tree.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace penstock::train {
namespace {

// The loss argument that marks which rows count. Rows that count come before padding rows.
constexpr const char* kRowCounts = "row_counts";

struct WeightedSum {
  double loss = 0, weight = 0;
};

// Returns the part of each tensor that belongs to the first `count` of `rows` rows. A tensor may have several
// entries per row in dim 0.
c10::IValue first_rows(const c10::IValue& tree, std::int64_t rows, std::int64_t count) {
  return value::map_tensors(tree, [&](const at::Tensor& tensor) {
    const bool has_rows = tensor.dim() > 0 && tensor.size(0) > 0 && tensor.size(0) % rows == 0;
    return has_rows ? tensor.narrow(0, 0, tensor.size(0) / rows * count) : tensor;
  });
}

// Returns these rows, padded to `size` rows with copies of the last one (of row 0 if there are none).
Batch filled(const DataSource& data, Rows rows, std::int64_t size) {
  const std::int64_t count = rows.end - rows.begin;
  if (count == size) return data.validation(rows);
  Batch batch = data.validation(count > 0 ? rows : Rows{0, 1});
  const std::int64_t read = std::max<std::int64_t>(count, 1);
  const at::Tensor index = at::arange(size, at::kLong).clamp_max(read - 1);
  const auto fill = [&](const c10::IValue& tree) {
    return value::map_tensors(tree, [&](const at::Tensor& tensor) {
      return tensor.dim() > 0 && tensor.size(0) == read ? at::index_select(tensor, 0, index) : tensor;
    });
  };
  for (c10::IValue& arg : batch.args) arg = fill(arg);
  for (auto& [name, value] : batch.kwargs) value = fill(value);
  batch.target = fill(batch.target);
  return batch;
}

// Runs the pipeline of this replica on validation rows `rows`, padded to a batch of `size`.
WeightedSum loss_of(const Assembly& assembly, const runtime::LossReduction& reduction, const DataSource& data,
                    Rows rows, std::int64_t size) {
  const Batch batch = to_device(filled(data, rows, size), assembly.device);
  const int microbatches = assembly.pipeline->program().microbatches();
  const std::vector<std::int64_t> sizes = value::chunk_sizes(size, microbatches);
  const std::vector<c10::IValue> targets = value::split_tree(batch.target, microbatches, "target");
  const std::int64_t count = rows.end - rows.begin;
  runtime::StepOptions options{.kwargs = batch.kwargs};
  if (count < size) options.loss_kwargs[kRowCounts] = at::arange(size, at::kLong).lt(count);
  const runtime::StepResult result = assembly.pipeline->eval(batch.args, batch.target, options);
  WeightedSum sum;
  if (result.losses.empty()) return sum;  // not a rank of the last stage
  const at::Tensor losses = at::stack(result.losses).to(at::kCPU, at::kDouble);
  std::int64_t begin = 0;
  for (std::size_t m = 0; m < sizes.size(); begin += sizes[m++]) {
    const std::int64_t here = std::clamp<std::int64_t>(count - begin, 0, sizes[m]);
    if (here == 0) continue;
    const double weight =
        reduction.weight_of(first_rows(targets[m], sizes[m], here)).value_or(static_cast<double>(here));
    if (weight == 0) continue;  // its loss may be NaN
    sum.loss += weight * losses.const_data_ptr<double>()[m];
    sum.weight += weight;
  }
  return sum;
}

}  // namespace

runtime::LossFunction without_padding_rows(runtime::LossFunction loss) {
  return [loss = std::move(loss)](const c10::IValue& output, const c10::IValue& target,
                                  const value::Kwargs& more) {
    const auto it = more.find(kRowCounts);
    if (it == more.end()) return loss(output, target, more);
    const at::Tensor counts = it->second.toTensor();
    const std::int64_t rows = counts.size(0), count = counts.sum().item<std::int64_t>();
    if (count == 0) return loss(output, target, {});  // the result is not used
    return loss(first_rows(output, rows, count), first_rows(target, rows, count), {});
  };
}

std::optional<double> validation_loss(const tensor::DeviceMesh& mesh, const Assembly& assembly,
                                      const Model& model, const DataSource& data, const RunOptions& options) {
  const runtime::LossReduction reduction = model.reduction();
  const std::int64_t size = options.batch / options.parallel.dp / options.accumulate;
  std::int64_t rows = data.validation_rows();
  if (options.eval_batches) rows = std::min(rows, *options.eval_batches * options.batch);
  const comm::Group& replicas = mesh.group("dp");
  WeightedSum sum;
  for (std::int64_t first = 0; first < rows; first += size * options.parallel.dp) {
    const std::int64_t begin = std::min(first + replicas.rank() * size, rows);
    const WeightedSum part = loss_of(assembly, reduction, data, {begin, std::min(begin + size, rows)}, size);
    sum.loss += part.loss;
    sum.weight += part.weight;
  }
  at::Tensor total = at::tensor({sum.loss, sum.weight}, at::kDouble);
  if (replicas.size() > 1) replicas.all_reduce(total);
  if (const comm::Group& pipeline = mesh.group("pp"); pipeline.size() > 1)
    pipeline.broadcast(total, assembly.loss_rank());
  const auto* const numbers = total.const_data_ptr<double>();
  if (numbers[1] == 0) return std::nullopt;
  return numbers[0] / numbers[1];
}

}  // namespace penstock::train
