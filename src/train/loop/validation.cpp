// Validation batches have the shape of a training batch. Short ones are padded with rows that do not count.
#include "train/loop/validation.h"

#include "train/data/device_batch.h"
#include "train/loop/pass_loader.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace penstock::train {
namespace {

struct WeightedSum {
  double loss = 0, weight = 0;
};

// Runs the pipeline of this replica on validation rows.
WeightedSum loss_of(const Assembly& assembly, const runtime::LossReduction& reduction, PassBatch pass) {
  pass.batch = to_device(std::move(pass.batch), assembly.device);
  const c10::IValue target = pass.target();
  const runtime::StepResult result =
      assembly.pipeline->eval(pass.batch.args, target, {.kwargs = pass.batch.kwargs});
  WeightedSum sum;
  if (result.losses.empty()) return sum;  // not a rank of the last stage
  const at::Tensor losses = at::stack(result.losses).to(at::kCPU, at::kDouble);
  const std::vector<c10::IValue> targets =
      value::split_tree(target, assembly.pipeline->program().microbatches(), "target");
  for (std::size_t m = 0; m < targets.size(); ++m) {
    const double weight = reduction.weight_of(targets[m]).value();
    if (weight == 0) continue;  // its loss may be NaN
    sum.loss += weight * losses.const_data_ptr<double>()[m];
    sum.weight += weight;
  }
  return sum;
}

}  // namespace

std::optional<double> validation_loss(const tensor::DeviceMesh& mesh, const Assembly& assembly,
                                      const Model& model, const DataSource& data, const RunOptions& options) {
  const runtime::LossReduction reduction = reduction_of_counted(model.reduction());
  const std::int64_t size = options.batch / options.parallel.dp / options.accumulate;
  std::int64_t rows = data.validation_rows();
  if (options.eval_batches) rows = std::min(rows, *options.eval_batches * options.batch);
  if (model.needs_full_batches()) rows -= rows % (size * options.parallel.dp);
  const comm::Group& replicas = mesh.group("dp");
  const std::int64_t each = size * options.parallel.dp, count = (rows + each - 1) / each;
  const auto load = [&, replica = replicas.rank()](std::int64_t number) {
    const std::int64_t begin = std::min(number * each + replica * size, rows);
    LoadedPass loaded{
        validation_pass(data, {begin, std::min(begin + size, rows)}, size, options.parallel.microbatches)};
    loaded.pass.batch = pinned(std::move(loaded.pass.batch), assembly.device);
    return loaded;
  };
  PassLoader passes(load, count, options.prefetch, assembly.device);
  WeightedSum sum;
  for (std::int64_t number = 0; number < count; ++number) {
    const WeightedSum part = loss_of(assembly, reduction, passes.take().pass);
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
