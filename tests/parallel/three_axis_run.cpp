// Builds the stages of the model, sharded and replicated.
#include "parallel/three_axis_run.h"

#include "parallel/dense_gpt.h"
#include "support/mesh_ranks.h"

#include <penstock/base/error.h>
#include <penstock/schedule/stage_placement.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/Parallel.h>
#include <torch/torch.h>

namespace penstock::test {
namespace {

using test::full_copy;

// Vocabulary, hidden width and time are uneven over two ranks.
models::GptOptions gpt_options(Kind kind) {
  models::GptOptions options;
  options.vocabulary = 13;
  options.context = kTime;
  options.layers = 4;
  options.heads = 2;
  options.width = 8;
  options.hidden = 13;
  options.tied = kind == Kind::Tied;
  return options;
}

models::Gpt make_part(Kind kind, const models::GptPart& part) {
  models::Gpt gpt(gpt_options(kind), part);
  models::initialize(*gpt, gpt_options(kind), 5);
  if (kind != Kind::Frozen) return gpt;
  for (const auto& item : gpt->named_parameters()) {
    const std::string& name = item.key();
    if (name.starts_with("token") || name.starts_with("blocks.0.") || name == "norm.bias")
      at::Tensor(item.value()).set_requires_grad(false);
  }
  return gpt;
}

parallel::ParallelPlan plan_for(const models::GptImpl& part) {
  parallel::ParallelPlan plan{{"blocks.*.attention.query", parallel::ColwiseParallel()},
                              {"blocks.*.attention.key", parallel::ColwiseParallel()},
                              {"blocks.*.attention.value", parallel::ColwiseParallel()},
                              {"blocks.*.attention.out", parallel::RowwiseParallel()},
                              {"blocks.*.mlp.up", parallel::ColwiseParallel()},
                              {"blocks.*.mlp.down", parallel::RowwiseParallel()}};
  if (!part.token.is_empty()) plan.emplace_back("token", parallel::RowwiseParallel());
  if (!part.head.is_empty()) plan.emplace_back("head", parallel::ColwiseParallel());
  return plan;
}

at::Tensor handed_over(const at::Tensor& tensor, Activation activation) {
  if (!tensor::is_dtensor(tensor)) return tensor;
  switch (activation) {
    case Activation::Full:
      return tensor::full_tensor(tensor);
    case Activation::AsItIs:
      return tensor;
    case Activation::ShardRows:
      return tensor::redistribute(tensor, {tensor::Shard(0)});
    case Activation::ShardTime:
      return tensor::redistribute(tensor, {tensor::Shard(1)});
  }
  return tensor;
}

at::Tensor loss_of_logits(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

}  // namespace

const char* text(Kind kind) {
  return kind == Kind::Plain ? "plain" : kind == Kind::Tied ? "tied" : "frozen";
}
const char* text(Data data) {
  constexpr const char* names[] = {"none", "replicated", "sharded", "sharded gradients", "sharded optimizer"};
  return names[static_cast<int>(data)];
}
const char* text(Activation activation) {
  switch (activation) {
    case Activation::Full:
      return "full";
    case Activation::AsItIs:
      return "as it is";
    case Activation::ShardRows:
      return "sharded rows";
    case Activation::ShardTime:
      return "sharded time";
  }
  return "";
}

Batch batch_of(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(700 + step));
  const at::Tensor all = at::randint(0, 13, {kBatch, kTime + 1}, generator);
  return {all.narrow(1, 0, kTime), all.narrow(1, 1, kTime)};
}

DenseTraining train_dense(Kind kind, int repeats) {
  at::set_num_threads(1);
  models::Gpt gpt = make_part(kind, models::GptPart::full(gpt_options(kind)));
  torch::optim::AdamW optimizer = adamw(gpt->parameters());
  DenseTraining run;
  for (int step = 0; step < kTrainSteps; ++step) {
    const Batch batch = batch_of(step);
    optimizer.zero_grad();
    at::Tensor loss;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      loss = loss_of_logits(gpt->forward(batch.inputs), batch.targets);
      loss.backward();
    }
    run.losses.push_back(loss.item<double>());
    for (const auto& item : gpt->named_parameters())
      if (step == 0) run.gradients[item.key()] = full_copy(item.value().grad());
    optimizer.step();
  }
  for (const auto& item : gpt->named_parameters()) run.parameters[item.key()] = full_copy(item.value());
  return run;
}

Tensors microbatch_gradients(Kind kind, const Batch& rows, bool backwards) {
  at::set_num_threads(1);
  models::Gpt gpt = make_part(kind, models::GptPart::full(gpt_options(kind)));
  const auto inputs = rows.inputs.chunk(kMicrobatches), targets = rows.targets.chunk(kMicrobatches);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t m = backwards ? inputs.size() - 1 - i : i;
    (loss_of_logits(gpt->forward(inputs[m]), targets[m]) / kMicrobatches).backward();
  }
  Tensors gradients;
  for (const auto& item : gpt->named_parameters()) gradients[item.key()] = full_copy(item.value().grad());
  return gradients;
}

std::string Row::text() const {
  return std::string(to_string(schedule)) + " x" + std::to_string(stages_per_rank);
}

std::vector<Row> schedules(int ranks) {
  std::vector<Row> all;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    for (const int per_rank : {1, 2}) {
      if (!info.has_backward) continue;
      try {
        check_shape(info.kind, {ranks, per_rank, kMicrobatches});
      } catch (const UsageError&) {
        continue;
      }
      all.push_back({info.kind, per_rank});
    }
  }
  return all;
}

ThreeAxisGpt::ThreeAxisGpt(const comm::World& world, Axes axes, schedule::ScheduleKind schedule,
                           int stages_per_rank, Kind kind, Data data, Activation activation,
                           const runtime::StageOptions& stage_options)
    : mesh(world.group(), {axes.pp, axes.replicas, axes.dp, axes.tp}, {"pp", "replicas", "dp", "tp"}) {
  const int count = axes.pp * stages_per_rank;
  const std::int64_t layers = gpt_options(kind).layers;
  const schedule::Placement placement =
      schedule::Placement::make(axes.pp, count, info_of(schedule).placement);
  if (kind == Kind::Tied && count > 1)
    shared_ = {{{StageId(0), "token.weight"}, {StageId(count - 1), "token.weight"}}};
  if (data != Data::None && data != Data::Replicated) {
    parallel::StageShardOptions sharding;
    if (data == Data::ShardedGradients) sharding.storage = parallel::ParameterStorage::ShardGradients;
    if (data == Data::ShardedOptimizer) sharding.storage = parallel::ParameterStorage::ShardOptimizer;
    sharding.find_unused = true;
    sharding.unit_bytes = kUnitBytes;
    if (!shared_.empty()) sharding.separate = {"token.weight"};
    if (axes.replicas > 1) sharding.replicas = mesh.group("replicas");
    sharded = std::make_shared<parallel::ShardedStages>(mesh.group("dp"), sharding);
  }
  for (const StageId stage : placement.stages_of(Rank(mesh.group("pp").rank()))) {
    const int s = stage.value;
    models::Gpt part =
        make_part(kind, {s * layers / count, (s + 1) * layers / count, s == 0, s == count - 1});
    if (axes.tp > 1) parallel::parallelize_module(*part, mesh["tp"], plan_for(*part));
    const bool last = s == count - 1;
    const std::shared_ptr<runtime::StageModule> module = runtime::make_stage_module(
        part.ptr(), [part, last, activation](const value::Args& args, const value::Kwargs&) mutable {
          const at::Tensor result = part->forward(args[0].toTensor());
          return runtime::StageResult(last ? result : handed_over(result, activation));
        });
    stages.emplace_back(sharded ? sharded->add(StageId(s), module) : module, StageId(s), count, at::kCPU,
                        mesh.group("pp"), stage_options);
    parts_.push_back(part);
  }
  if (data == Data::Replicated) {
    parallel::ReplicateOptions small;
    small.bucket_bytes = small.first_bucket_bytes = 300;
    replicated = std::make_shared<parallel::ReplicatedStages>(stages, mesh.group("dp"), small);
  }
}

runtime::PipelineOptions ThreeAxisGpt::options() const {
  runtime::PipelineOptions options;
  options.loss = runtime::tensor_loss(loss_of_logits);
  options.shared = shared_;
  options.data_parallel = sharded ? std::static_pointer_cast<runtime::DataParallel>(sharded)
                                  : std::static_pointer_cast<runtime::DataParallel>(replicated);
  return options;
}

Batch ThreeAxisGpt::local_rows(const Batch& batch) const {
  const std::int64_t dp = mesh.size(2), rank = mesh.coordinate(1) * dp + mesh.coordinate(2);
  const auto rows_of = [&](const at::Tensor& all) {
    return all.chunk(mesh.size(1) * dp)[static_cast<std::size_t>(rank)];
  };
  return {rows_of(batch.inputs), rows_of(batch.targets)};
}

at::Tensor ThreeAxisGpt::mean(const at::Tensor& loss) const {
  if (!loss.defined()) return loss;
  at::Tensor value = loss.clone();
  mesh.group("dp").all_reduce(value, comm::ReduceOp::Avg);
  mesh.group("replicas").all_reduce(value, comm::ReduceOp::Avg);
  return value;
}

std::vector<at::Tensor> ThreeAxisGpt::optimizer_parameters() const {
  if (sharded) return sharded->parameters();
  std::vector<at::Tensor> all;
  for (const models::Gpt& part : parts_) {
    for (const at::Tensor& parameter : part->parameters()) all.push_back(parameter);
  }
  return all;
}

void ThreeAxisGpt::drop_gradients() const {
  for (const at::Tensor& parameter : optimizer_parameters()) parameter.mutable_grad() = at::Tensor();
}

Tensors ThreeAxisGpt::gradients() const {
  Tensors all;
  if (sharded) {
    for (const runtime::PipelineStage& stage : stages) {
      for (const value::NamedTensor& item : sharded->sharded(stage.index()).gather_gradients())
        all[item.name] = item.tensor;
    }
    return all;
  }
  for (const models::Gpt& part : parts_) {
    for (const auto& item : part->named_parameters()) all[item.key()] = full_copy(item.value().grad());
  }
  return all;
}

Tensors ThreeAxisGpt::parameters() const {
  Tensors all;
  if (sharded) {
    for (const runtime::PipelineStage& stage : stages) {
      for (const value::NamedTensor& item : sharded->sharded(stage.index()).gather_parameters())
        all[item.name] = item.tensor;
    }
    return all;
  }
  for (const models::Gpt& part : parts_) {
    for (const auto& item : part->named_parameters()) all[item.key()] = full_copy(item.value());
  }
  return all;
}

void expect_equal(const std::string& what, const Tensors& actual, const Tensors& expected, double factor) {
  for (const auto& [name, value] : actual) {
    const at::Tensor& want = expected.at(name);
    expect_near(what + " " + name, value, want.defined() ? want * factor : want);
  }
}

}  // namespace penstock::test
