// Builds the pipeline of a run from its options.
#include "train/model/assembly.h"

#include "train/loop/validation.h"
#include "train/model/tensor_parallel.h"

#include <penstock/base/error.h>
#include <penstock/schedule/generate.h>

#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace penstock::train {
namespace {

// Reports the progress of the rank and triggers the faults that are due.
runtime::ActionFunction watched_action(Progress& progress,
                                       const std::map<int, std::shared_ptr<InstrumentedStage>>& stages) {
  return [&progress, stages](const schedule::Action& action, const std::function<void()>& usual) {
    progress.location.at(progress.step, action);
    if (!progress.faults.empty() && progress.faults.at(progress.step, to_string(action))) {
      const at::NoGradGuard no_grad;
      for (const runtime::NamedTensor& item : stages.at(action.stage().value)->parameters())
        item.tensor.fill_(std::nan(""));
    }
    usual();
  };
}

std::vector<runtime::NamedTensor> distinct_parameters(
    const std::map<int, std::shared_ptr<InstrumentedStage>>& stages) {
  std::vector<runtime::NamedTensor> all;
  for (const auto& [index, stage] : stages) {
    for (const runtime::NamedTensor& item : stage->parameters()) {
      const auto same = [&](const runtime::NamedTensor& other) { return other.tensor.is_same(item.tensor); };
      if (item.tensor.requires_grad() && item.tensor.numel() > 0 &&
          std::none_of(all.begin(), all.end(), same))
        all.push_back(item);
    }
  }
  return all;
}

}  // namespace

std::map<int, StageBytes> Assembly::bytes() const {
  std::map<int, StageBytes> all;
  for (const auto& [index, stage] : stages) {
    StageBytes bytes{.output = stage->output_bytes(), .kept = stage->kept_bytes()};
    for (const runtime::NamedTensor& item : stage->parameters())
      bytes.parameters += local_part(item.tensor).nbytes();
    bytes.optimizer = bytes.parameters * optimizer->states().size();
    all[index] = bytes;
  }
  return all;
}

schedule::ScheduleShape checked_shape(const ParallelOptions& options, const std::string& name) {
  const schedule::ScheduleKind kind = schedule::parse_schedule_kind(name);
  const schedule::ScheduleInfo& info = info_of(kind);
  if (!info.has_backward)
    throw UsageError(std::string(info.name) + " has no backward and cannot train", {},
                     "use 1F1B or another schedule with a backward");
  const int each = options.stages_per_rank > 0 ? options.stages_per_rank : info.default_stages_per_rank;
  const schedule::ScheduleShape shape{options.pp, each, options.microbatches};
  check_shape(kind, shape);
  return shape;
}

schedule::Schedule schedule_of(const ParallelOptions& options, const std::string& name) {
  return make_schedule(schedule::parse_schedule_kind(name), checked_shape(options, name));
}

namespace {

// Shared parameters must be sharded identically in every stage.
std::shared_ptr<parallel::ShardedStages> make_sharded(const Mesh& mesh, const Model& model) {
  parallel::ShardOptions options;
  for (const runtime::SharedParameter& shared : model.shared())
    for (const runtime::ParameterLocation& place : shared) options.separate.push_back(place.name);
  return std::make_shared<parallel::ShardedStages>(mesh.replicas, options);
}

}  // namespace

Assembly assemble(const Mesh& mesh, Model& model, const schedule::Schedule& schedule,
                  const RunOptions& options, Progress& progress) {
  Assembly made;
  made.watch->precision = options.precision;
  model.cut(schedule.stages());
  if (mesh.tensors.size() > 1) model.spread(mesh.tensors);
  made.state = model.state();
  if (options.parallel.sharding == Sharding::Full) made.sharded = make_sharded(mesh, model);
  std::vector<runtime::PipelineStage> stages;
  for (const StageId stage : schedule.placement.stages_of(Rank(mesh.pp))) {
    std::shared_ptr<runtime::StageModule> module = model.stage(stage.value);
    if (made.sharded) module = made.sharded->add(stage.value, module);
    const auto watched = std::make_shared<InstrumentedStage>(module, made.watch);
    made.stages[stage.value] = watched;
    stages.emplace_back(watched, stage.value, schedule.stages(), at::kCPU, mesh.pipeline,
                        runtime::StageOptions{.recompute = options.parallel.recompute});
  }
  runtime::PipelineOptions pipeline;
  pipeline.loss = over_rows_that_count(watched_loss(model.loss(), model.reduction(), made.watch));
  pipeline.reduction = model.reduction();
  pipeline.skips = model.skips();
  pipeline.shared = model.shared();
  pipeline.return_outputs = false;
  pipeline.loss_on_all_ranks = true;
  pipeline.seed = options.seed;
  pipeline.replica = static_cast<std::uint32_t>(mesh.dp);
  if (made.sharded) {
    pipeline.data_parallel = made.sharded;
  } else if (mesh.replicas.size() > 1) {
    pipeline.data_parallel = std::make_shared<parallel::ReplicatedStages>(stages, mesh.replicas);
  }
  const runtime::ActionFunction watching = watched_action(progress, made.stages);
  for (int number = static_cast<int>(schedule::ActionKind::Forward);
       number <= static_cast<int>(schedule::ActionKind::ReduceGrad); ++number) {
    // Receives never block, so their progress is not reported. Without a hook they can be posted ahead.
    const auto kind = static_cast<schedule::ActionKind>(number);
    const bool receive =
        kind == schedule::ActionKind::RecvForward || kind == schedule::ActionKind::RecvBackward;
    if (!receive || progress.faults.wait_for(kind)) pipeline.custom[kind] = watching;
  }
  made.pipeline = std::make_unique<runtime::PipelineSchedule>(stages, schedule, std::move(pipeline));
  made.optimizer = std::make_unique<Optimizer>(distinct_parameters(made.stages), options.optimizer);
  return made;
}

std::map<std::string, at::Tensor> gather_parameters(const Mesh& mesh, const Assembly& assembly) {
  std::map<std::string, at::Tensor> all;
  c10::Dict<std::string, at::Tensor> mine;
  for (const auto& [index, stage] : assembly.stages) {
    const auto whole = assembly.sharded ? assembly.sharded->sharded(StageId(index)).gather_parameters()
                                        : stage->parameters();
    for (const runtime::NamedTensor& item : whole)
      mine.insert_or_assign(item.name, whole_of(item.tensor).detach().contiguous());
  }
  if (mesh.dp != 0 || mesh.tp != 0) return all;
  constexpr int tag = 77;
  if (mesh.pp != 0) {
    mesh.pipeline.send_object(mine, 0, tag);
    return all;
  }
  const auto take = [&](const c10::Dict<std::string, at::Tensor>& dict) {
    for (const auto& item : dict) all[item.key()] = item.value();
  };
  take(mine);
  for (int rank = 1; rank < mesh.pipeline.size(); ++rank) {
    const auto received = mesh.pipeline.recv_object(rank, tag).toGenericDict();
    for (const auto& item : received) all[item.key().toStringRef()] = item.value().toTensor();
  }
  return all;
}

}  // namespace penstock::train
