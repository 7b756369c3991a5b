// Builds the pipeline of a run from its options.
#include "train/model/assembly.h"

#include "base/text.h"
#include "parallel/replica_agreement.h"
#include "train/data/device_batch.h"
#include "train/loop/counted_rows.h"
#include "train/model/master_weights.h"
#include "train/model/tensor_parallel_stage.h"

#include <penstock/base/error.h>
#include <penstock/schedule/generate.h>

#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <set>
#include <variant>

namespace penstock::train {
namespace {

std::vector<value::NamedTensor> distinct_parameters(
    const std::map<StageId, std::shared_ptr<InstrumentedStage>>& stages) {
  std::vector<value::NamedTensor> all;
  for (const auto& [index, stage] : stages) {
    for (const value::NamedTensor& item : stage->parameters()) {
      const auto same = [&](const value::NamedTensor& other) { return other.tensor.is_same(item.tensor); };
      if (item.tensor.requires_grad() && item.tensor.numel() > 0 &&
          std::none_of(all.begin(), all.end(), same))
        all.push_back(item);
    }
  }
  return all;
}

// The bytes of all parameters of a stage, of which a tensor-parallel rank has its part.
std::uint64_t full_bytes(const parallel::Sharded& sharded) {
  std::uint64_t bytes = 0;
  for (const parallel::ShardedParameter& item : sharded.shards())
    bytes += static_cast<std::uint64_t>(c10::multiply_integers(item.shape)) * item.shard.element_size();
  return bytes;
}

}  // namespace

std::map<StageId, StageBytes> Assembly::bytes() const {
  std::map<StageId, StageBytes> all;
  const std::vector<value::NamedTensor>& trained = optimizer->parameters();
  const std::vector<Optimizer::State> states = optimizer->states();
  for (const auto& [index, stage] : stages) {
    StageBytes bytes{.output = stage->output_bytes(), .kept = stage->kept_bytes()};
    const bool lists_stored = sharding == Sharding::None || sharding == Sharding::Full;
    bytes.parameters = lists_stored ? 0 : full_bytes(sharded->sharded(index));
    bytes.gradients = sharding == Sharding::Optimizer ? bytes.parameters : 0;
    for (const value::NamedTensor& item : stage->parameters()) {
      const std::uint64_t local = local_shard(item.tensor).nbytes();
      if (lists_stored) bytes.parameters += local;
      if (sharding != Sharding::Optimizer) bytes.gradients += local;
      for (std::size_t i = 0; i < trained.size(); ++i)
        if (trained[i].tensor.is_same(item.tensor))
          for (const Optimizer::State& kind : states) bytes.optimizer += kind.tensors[i].tensor.nbytes();
    }
    all[index] = bytes;
  }
  return all;
}

int Assembly::loss_rank() const {
  const schedule::Program& program = pipeline->program();
  return program.placement().rank_of(StageId(program.num_stages() - 1)).value;
}

tensor::DeviceMesh make_mesh(const comm::World& world, const ParallelOptions& options) {
  if (world.size() != options.ranks())
    throw UsageError(str_cat("pp ", options.pp, " x dp ", options.dp, " x tp ", options.tp, " requires ",
                             options.ranks(), " ranks, but the world size is ", world.size()));
  return {world.group(), {options.pp, options.dp, options.tp}, {"pp", "dp", "tp"}};
}

bool is_auto(const ParallelOptions& options) {
  return !options.table && is_auto(options.schedule);
}

namespace {

void check_table(const schedule::Schedule& table, const ParallelOptions& options) {
  const auto differs = [](const std::string& what, int in_table, int asked) {
    if (in_table != asked)
      throw UsageError(
          str_cat("the table of the schedule has ", in_table, " ", what, ", but the run has ", asked), {},
          "use the counts for which the table was made");
  };
  differs("ranks", table.placement.ranks(), options.pp);
  differs("microbatches", table.microbatches, options.microbatches);
  if (options.stages_per_rank) differs("stages", table.num_stages(), options.pp * *options.stages_per_rank);
  if (!has_backward(table.ranks))
    throw UsageError("the table of the schedule has no backward pass and cannot train");
}

}  // namespace

schedule::ScheduleShape checked_shape(const ParallelOptions& options, schedule::ScheduleKind kind) {
  const schedule::ScheduleInfo& info = info_of(kind);
  if (!info.has_backward)
    throw UsageError(std::string(info.name) + " has no backward pass and cannot train", {},
                     "use 1F1B or another schedule with a backward pass");
  const schedule::ScheduleShape shape{
      options.pp, options.stages_per_rank.value_or(info.default_stages_per_rank), options.microbatches};
  check_shape(kind, shape);
  return shape;
}

schedule::Schedule schedule_of(const ParallelOptions& options, schedule::ScheduleKind kind) {
  return make_schedule(kind, checked_shape(options, kind));
}

int num_stages(const ParallelOptions& options) {
  if (options.table) {
    check_table(*options.table, options);
    return options.table->num_stages();
  }
  if (is_auto(options)) return options.pp * options.stages_per_rank.value_or(1);
  return checked_shape(options, std::get<schedule::ScheduleKind>(options.schedule)).num_stages();
}

namespace {

parallel::ParameterStorage storage_of(Sharding sharding) {
  switch (sharding) {
    case Sharding::None:
      break;
    case Sharding::Optimizer:
      return parallel::ParameterStorage::ShardOptimizer;
    case Sharding::Gradients:
      return parallel::ParameterStorage::ShardGradients;
    case Sharding::Full:
      return parallel::ParameterStorage::Shard;
  }
  return parallel::ParameterStorage::Copy;
}

// Shared parameters must be sharded identically in every stage.
std::shared_ptr<parallel::ShardedStages> make_sharded(const comm::Group& replicas, const StagedModel& model,
                                                      const RunOptions& run) {
  parallel::StageShardOptions options;
  options.storage = storage_of(run.parallel.sharding);
  options.store_as = at::kFloat;  // master weights
  if (run.parameter_dtype == ParameterDtype::Bfloat16) {
    options.compute_as = at::kBFloat16;
    options.reduce_as = at::kFloat;
  }
  for (const runtime::SharedParameter& shared : model.shared())
    for (const runtime::ParameterLocation& location : shared) options.separate.push_back(location.name);
  return std::make_shared<parallel::ShardedStages>(replicas, options);
}

runtime::PipelineOptions pipeline_options(const Model& model, const StagedModel& split,
                                          const RunOptions& options, const Progress& progress,
                                          const std::shared_ptr<StageObserver>& observer) {
  runtime::PipelineOptions pipeline;
  pipeline.loss =
      loss_of_counted(with_target_on_device(observed_loss(model.loss(), model.reduction(), observer)));
  pipeline.reduction = reduction_of_counted(model.reduction());
  pipeline.skips = split.skips();
  pipeline.shared = split.shared();
  pipeline.return_outputs = false;
  pipeline.seed = options.seed;
  if (!progress.hook) return pipeline;
  std::set<schedule::ActionKind> followed;
  for (int number = static_cast<int>(schedule::ActionKind::Forward);
       number <= static_cast<int>(schedule::ActionKind::ReduceGrad); ++number) {
    const auto kind = static_cast<schedule::ActionKind>(number);
    if (progress.hook->follows(kind)) followed.insert(kind);
  }
  pipeline.execution.before_action = [&progress, followed](const schedule::Action& action) {
    if (followed.contains(action.kind())) progress.hook->on_action(action, progress.state());
  };
  return pipeline;
}

// Sorted by dtype, so that one message carries all buffers of a dtype.
std::vector<at::Tensor> changing_buffers(const std::map<StageId, std::shared_ptr<InstrumentedStage>>& stages,
                                         const std::optional<std::set<std::string>>& names) {
  std::vector<value::NamedTensor> found;
  for (const auto& [index, stage] : stages)
    for (const value::NamedTensor& item : stage->buffers())
      if (!names || names->contains(item.name)) found.push_back(item);
  std::vector<at::Tensor> tensors;
  for (const value::NamedTensor& item : parallel::each_once(found)) tensors.push_back(item.tensor);
  std::stable_sort(tensors.begin(), tensors.end(), [](const at::Tensor& a, const at::Tensor& b) {
    return a.scalar_type() < b.scalar_type();
  });
  return tensors;
}

// Before data parallelism groups parameters by whether they are trained.
void freeze_parameters(const runtime::StageModule& module, const ParameterGroups& groups) {
  for (const value::NamedTensor& item : module.parameters()) {
    if (!groups.of(item.name).frozen) continue;
    at::Tensor parameter = item.tensor;
    parameter.set_requires_grad(false);
  }
}

}  // namespace

ParameterGroups parameter_groups(const Model& model, const ParameterGroupOptions& options) {
  if (options.empty()) return {};
  std::vector<ParameterInfo> parameters;
  for (const checkpoint::Piece& piece : model.state_metadata()) {
    if (piece.kind != checkpoint::PieceKind::Parameter) continue;
    ParameterInfo info{{piece.name}, piece.local.dim(), piece.local.requires_grad()};
    info.names.insert(info.names.end(), piece.aliases.begin(), piece.aliases.end());
    parameters.push_back(std::move(info));
  }
  if (parameters.empty())
    throw UsageError("the model does not list its parameters, which patterns of parameters need", {},
                     "implement Model::state_metadata, or leave RunOptions::parameters empty");
  return {options, parameters};
}

Assembly assemble(const tensor::DeviceMesh& mesh, at::Device device, const Model& model,
                  const ModelSplit& split, const schedule::Schedule& schedule, const DataSource& data,
                  const RunOptions& options, Progress& progress) {
  Assembly assembly;
  assembly.device = assembly.observer->device = device;
  assembly.observer->precision = options.precision;
  assembly.sharding = options.parallel.sharding;
  const comm::Group &pipeline_group = mesh.group("pp"), &replicas = mesh.group("dp");
  const int tensor_ranks = mesh.group("tp").size();
  const auto tensor_group = tensor_ranks > 1 ? std::optional(mesh.group("tp")) : std::nullopt;
  const ParameterGroups groups = parameter_groups(model, options.parameters);
  const std::unique_ptr<StagedModel> parts = model.split_at(split);
  parts->recompute_modules(options.parallel.recompute_modules);
  assembly.messages = parts->sharding_messages(tensor_ranks);
  assembly.state = parts->state();
  for (const std::string& dtype : reduced_parameter_dtypes(model, groups))
    assembly.messages.push_back("parameters in " + dtype +
                                " are trained with master weights and optimizer states in float32");
  std::map<StageId, std::shared_ptr<runtime::StageModule>> modules;
  if (options.parallel.sharding != Sharding::None || options.parameter_dtype != ParameterDtype::Auto)
    assembly.sharded = make_sharded(replicas, *parts, options);
  for (const StageId stage : schedule.placement.stages_of(Rank(pipeline_group.rank()))) {
    std::shared_ptr<runtime::StageModule> module = parts->stage(stage, tensor_group);
    module->to(device);
    freeze_parameters(*module, groups);
    modules[stage] = assembly.sharded ? assembly.sharded->add(stage, module) : module;
  }
  if (!assembly.sharded && std::any_of(modules.begin(), modules.end(), [](const auto& item) {
        return trains_reduced_parameters(*item.second);
      })) {
    assembly.sharded = make_sharded(replicas, *parts, options);
    for (auto& [stage, module] : modules) module = assembly.sharded->add(stage, module);
  }
  std::vector<runtime::PipelineStage> stages;
  for (const auto& [stage, module] : modules) {
    const auto instrumented = std::make_shared<InstrumentedStage>(module, assembly.observer);
    assembly.stages[stage] = instrumented;
    progress.stages[stage] = instrumented;
    stages.emplace_back(instrumented, stage, schedule.num_stages(), device, pipeline_group,
                        runtime::StageOptions{.recompute = options.parallel.recompute});
  }
  if (replicas.size() > 1)
    assembly.replica_buffers = changing_buffers(assembly.stages, assembly.state.changing_buffers);
  runtime::PipelineOptions pipeline = pipeline_options(model, *parts, options, progress, assembly.observer);
  // Every pass has the same number of rows.
  if (data.has_fixed_shapes()) pipeline.shapes = runtime::ShapeMode::Static;
  pipeline.replica = static_cast<std::uint32_t>(replicas.rank());
  if (assembly.sharded) {
    pipeline.data_parallel = assembly.sharded;
  } else if (replicas.size() > 1) {
    pipeline.data_parallel = std::make_shared<parallel::ReplicatedStages>(stages, replicas);
  }
  assembly.pipeline = std::make_unique<runtime::PipelineSchedule>(stages, schedule, std::move(pipeline));
  assembly.optimizer =
      std::make_unique<Optimizer>(distinct_parameters(assembly.stages), options.optimizer, groups);
  return assembly;
}

void broadcast_buffers(const tensor::DeviceMesh& mesh, const Assembly& assembly) {
  if (!assembly.replica_buffers.empty())
    parallel::broadcast_values(mesh.group("dp"), assembly.replica_buffers);
}

std::map<std::string, at::Tensor> gather_parameters(const tensor::DeviceMesh& mesh,
                                                    const Assembly& assembly) {
  std::map<std::string, at::Tensor> all;
  c10::Dict<std::string, at::Tensor> local;
  for (const auto& [index, stage] : assembly.stages) {
    const auto parameters =
        assembly.sharded ? assembly.sharded->sharded(index).gather_parameters() : stage->parameters();
    for (const value::NamedTensor& item : parameters)
      local.insert_or_assign(item.name, gathered(item.tensor).detach().to(at::kCPU).contiguous());
  }
  if (mesh.group("dp").rank() != 0 || mesh.group("tp").rank() != 0) return all;
  constexpr int tag = 77;
  const comm::Group& pipeline = mesh.group("pp");
  if (pipeline.rank() != 0) {
    pipeline.send_object(local, 0, tag);
    return all;
  }
  const auto take = [&](const c10::Dict<std::string, at::Tensor>& dict) {
    for (const auto& item : dict) all[item.key()] = item.value();
  };
  take(local);
  for (int rank = 1; rank < pipeline.size(); ++rank) {
    const auto received = pipeline.recv_object(rank, tag).toGenericDict();
    for (const auto& item : received) all[item.key().toStringRef()] = item.value().toTensor();
  }
  return all;
}

}  // namespace penstock::train
