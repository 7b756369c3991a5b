// Splits the model as a run would, derives the costs of its stages from their graphs, and simulates a step.
#include "train/forecast/forecast.h"

#include "base/text.h"
#include "graph/passes/graph_costs.h"
#include "parallel/graph/weights.h"
#include "parallel/tensor/module_paths.h"
#include "pipe/balance.h"
#include "pipe/recomputed_graph.h"
#include "report/stages.h"
#include "train/loop/measure.h"
#include "train/loop/optimizer.h"
#include "train/lora/gpt_adapters.h"
#include "train/lora/graph_adapters.h"
#include "train/model/auto_plan.h"
#include "train/model/recomputed_modules.h"
#include "train/model/tensor_parallel_stage.h"
#include "train/preflight/balance_check.h"
#include "train/preflight/model_checks.h"
#include "train/preflight/token_data.h"
#include "train/preflight/train_checks.h"
#include "train/preflight/training_data.h"

#include <penstock/models/gpt.h>
#include <penstock/parallel/find_parallel_plan.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/value/tensor_meta.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::tool {
namespace {

//! The model of a run, split into its stages.
struct SplitModel {
  std::string summary;
  DataForecast data;
  train::ModelSplit split;
  std::vector<std::string> split_points;
  std::string balance;
  pipe::Pipe pipe;  //!< with the sizes of one microbatch
  parallel::ParallelPlan tensor_plan{};
  std::vector<std::string> notes{};
};

int num_stages(const TrainSettings& request) {
  return static_cast<int>(*request.stages);
}

SplitModel split_gpt(const TrainSettings& request, std::int64_t rows) {
  const GptData data = gpt_data(request);
  models::GptOptions options = request.gpt;
  options.vocabulary = data.vocabulary;
  const auto model = train::gpt_model(options, request.run.seed, request.lora(),
                                      request.recipe.loss_options(), read_split_points(request.split));
  const train::ModelSplit split = model->split(num_stages(request));
  pipe::SplitPoints points;
  std::vector<std::string> names;
  for (const std::size_t position : split.positions) {
    const auto layer = static_cast<std::int64_t>(position);  // 0: the embedding; after the blocks: the head
    names.push_back(layer <= options.layers ? str_cat("blocks.", layer - 1) : "norm");
    points[names.back()] = graph::SplitPoint::Beginning;
  }
  const graph::MetaDeviceScope no_memory;
  models::Gpt gpt(options);
  if (const auto lora = request.lora()) add_adapters(*gpt, *lora);
  const graph::ForwardFunction forward = [&gpt](const value::Args& args, const value::Kwargs&) {
    return c10::IValue(gpt->forward(args.at(0).toTensor()));
  };
  SplitModel result{
      .summary = model->summary(),
      .data = {.origin = data.origin},
      .split = split,
      .split_points = std::move(names),
      .balance = model->has_given_split() ? "given by --split" : "balanced by operation counts",
      .pipe = pipeline_of(forward, pipe::model_tensors(*gpt), {at::zeros({rows, options.context}, at::kLong)},
                          {}, points.empty() ? pipe::SplitSpec(pipe::AtMarks{}) : points)};
  result.data.characters = data.characters;
  result.data.tokens = data.tokens;
  result.data.vocabulary = options.vocabulary;
  if (request.run.eval_every) result.data.validation_rows = data.source->validation_rows();
  if (request.run.parallel.tp > 1) result.tensor_plan = train::gpt_tensor_plan(*gpt);
  return result;
}

SplitModel split_archive(const TrainSettings& request, std::int64_t rows) {
  const train::ArchiveModel archive = open_model(request.archive());
  const graph::Graph& graph = *archive.graph;
  const TrainingTable table = open_training_table(request, archive, request.data);
  DataForecast data{.origin = request.data, .examples = table.rows};
  for (const auto& [name, dtype] : table.dtypes)
    data.tensors.push_back(name + " " + value::dtype_name(dtype) +
                           format_shape(table.table->columns().at(name).shape));
  const auto source = archive_data(request, archive);
  if (request.run.eval_every) data.validation_rows = source->validation_rows();
  const train::Batch batch = source->training(1, request.run.batch, {0, rows});
  std::optional<graph::Graph> sized = sized_graph(graph, flatten_inputs(graph, batch.args, batch.kwargs));
  std::vector<std::string> notes;
  if (!sized)
    notes.emplace_back(
        "The sizes of this model depend on its data: activations and times are those of the example of the "
        "export.");
  if (request.balance == pipe::BalanceBy::MeasuredTime && !archive.model->has_given_split() &&
      num_stages(request) > 1)
    notes.emplace_back(
        "--balance time: the run measures a microbatch and may split the model elsewhere; here, stages are "
        "balanced by operation counts.");
  const train::ModelSplit split = archive.model->split(num_stages(request));
  std::vector<std::string> names;
  for (const std::size_t position : split.positions)
    names.push_back(str_cat("operator ", position, " of ", graph.nodes.size()));
  const bool by_parameters = request.balance == pipe::BalanceBy::Parameters;
  const pipe::TensorSource no_tensors = [](const std::vector<graph::Slot>&) {
    return std::vector<at::Tensor>{};
  };
  const int tensor_ranks = request.run.parallel.tp;
  parallel::ParallelPlan plan = request.archive().tensor_plan;
  if (tensor_ranks > 1 && plan.empty())
    plan = parallel::find_parallel_plan(archive.archive->graph(), tensor_ranks).plan;
  if (archive.model->lora() != nullptr) plan = adapted_plan(std::move(plan), *archive.model->lora());
  return {.summary = archive.model->summary(),
          .data = std::move(data),
          .split = split,
          .split_points = std::move(names),
          .balance = !request.cuts.empty()              ? "given by --cuts"
                     : archive.model->has_given_split() ? "given by --split"
                     : by_parameters                    ? "balanced by parameter bytes"
                                                        : "balanced by operation counts",
          .pipe = pipe::Pipe(sized ? *std::move(sized) : graph, no_tensors,
                             pipe::SplitPolicy([&](const graph::Graph&) { return split.positions; })),
          .tensor_plan = std::move(plan),
          .notes = std::move(notes)};
}

//! The dim along which a style shards a parameter; nullopt: every rank holds all of it.
std::optional<std::size_t> sharded_dim(const parallel::ParallelStyle& style, const parallel::WeightUse* use) {
  const bool by_columns = std::holds_alternative<parallel::ColwiseParallel>(style);
  if (!by_columns && !std::holds_alternative<parallel::RowwiseParallel>(style)) return std::nullopt;
  if (use) return static_cast<std::size_t>(by_columns ? use->out_dim : use->in_dim);
  return by_columns ? std::optional<std::size_t>(0) : std::nullopt;  // a bias
}

//! The elements of each slot that a tensor-parallel rank holds, at most.
std::vector<std::int64_t> local_elements(const graph::Graph& graph, const parallel::ParallelPlan& plan,
                                         int ranks) {
  const std::vector<parallel::WeightUse> uses = parallel::weight_uses(graph);
  std::vector<std::int64_t> elements;
  for (std::size_t i = 0; i < graph.slots.size(); ++i) {
    const graph::Slot& slot = graph.slots[i];
    const auto& meta = graph.value(slot.value).meta;
    elements.push_back(meta ? meta->numel() : 0);
    if (!meta || slot.kind != graph::Slot::Kind::Parameter) continue;
    const auto use = std::find_if(uses.begin(), uses.end(), [&](const auto& one) { return one.slot == i; });
    for (const auto& [pattern, style] : plan) {
      const bool fits =
          std::any_of(slot.names.begin(), slot.names.end(), [&wanted = pattern](const std::string& name) {
            return parallel::path_fits(wanted, parallel::parent_path(name));
          });
      const auto dim = fits ? sharded_dim(style, use == uses.end() ? nullptr : &*use) : std::nullopt;
      if (!dim || *dim >= meta->sizes.size()) continue;
      const std::int64_t size = meta->sizes[*dim].size;
      elements.back() = meta->numel() / std::max<std::int64_t>(size, 1) * ((size + ranks - 1) / ranks);
      break;
    }
  }
  return elements;
}

std::uint64_t bytes_of(std::int64_t elements, at::ScalarType dtype) {
  return static_cast<std::uint64_t>(elements) * c10::elementSize(dtype);
}

//! Whether the run trains a parameter.
bool is_trained(const graph::Slot& slot, const train::RunOptions& run) {
  const std::vector<std::string>& patterns = run.parameters.freeze;
  const auto freezes = [&](const std::string& pattern) {
    return std::any_of(slot.names.begin(), slot.names.end(),
                       [&](const std::string& name) { return train::selects(pattern, name); });
  };
  return slot.kind == graph::Slot::Kind::Parameter && slot.requires_grad &&
         std::none_of(patterns.begin(), patterns.end(), freezes);
}

//! The dtypes of the parameters that the stages compute with next to master weights.
std::vector<std::string> master_dtypes(const graph::Graph& graph, const train::RunOptions& run) {
  std::set<std::string> names;
  for (const graph::Slot& slot : graph.slots) {
    const auto& meta = graph.value(slot.value).meta;
    if (!meta || !is_trained(slot, run)) continue;
    const StoredDtypes dtypes = stored_dtypes(meta->dtype, true, run.parameter_dtype);
    if (dtypes.has_copy()) names.insert(value::dtype_name(dtypes.computed));
  }
  return {names.begin(), names.end()};
}

std::int64_t trained_parameters(const graph::Graph& graph, const train::RunOptions& run) {
  std::int64_t count = 0;
  for (const graph::Slot& slot : graph.slots)
    if (const auto& meta = graph.value(slot.value).meta; meta && is_trained(slot, run))
      count += meta->numel();
  return count;
}

//! Sets the sizes of a stage to those of one rank.
void set_local_bytes(plan::StageCosts& costs, const graph::StageGraph& stage,
                     const std::vector<std::int64_t>& elements, const train::RunOptions& run) {
  const graph::Graph& graph = stage.graph;
  using train::Sharding;
  const Sharding sharding = run.parallel.sharding;
  const bool sharded = sharding == Sharding::Full;
  const std::int64_t shards = sharding == Sharding::None ? 1 : run.parallel.dp;
  costs.parameter_bytes = costs.gradient_bytes = 0;
  std::vector<value::NamedTensor> trained;
  for (std::size_t i = 0; i < graph.slots.size(); ++i) {
    const graph::Slot& slot = graph.slots[i];
    if (slot.kind == graph::Slot::Kind::Constant) continue;
    const bool parameter = slot.kind == graph::Slot::Kind::Parameter;
    const std::int64_t full = elements.at(static_cast<std::size_t>(stage.slots.at(i)));
    const auto& meta = graph.value(slot.value).meta;
    if (!meta) continue;
    if (!parameter) {
      costs.parameter_bytes += bytes_of(full, meta->dtype);
      continue;
    }
    const std::int64_t shard = (full + shards - 1) / shards;
    const StoredDtypes dtypes = stored_dtypes(meta->dtype, is_trained(slot, run), run.parameter_dtype);
    // Next to a copy in another dtype, which replicas keep, they store only their shards of the master
    // weights.
    costs.parameter_bytes += bytes_of(sharded || dtypes.has_copy() ? shard : full, dtypes.stored);
    if (sharded) costs.unsharded_bytes += bytes_of(full, dtypes.computed);
    if (!sharded && dtypes.has_copy()) costs.parameter_bytes += bytes_of(full, dtypes.computed);
    if (full == 0 || !is_trained(slot, run)) continue;
    const bool all_gradients = sharding == Sharding::None || sharding == Sharding::Optimizer;
    costs.gradient_bytes += bytes_of(all_gradients ? full : shard, dtypes.stored);
    const auto options = at::TensorOptions(dtypes.stored).device(at::kMeta);
    trained.push_back({slot.names[0], at::empty({shard}, options)});
  }
  costs.optimizer_bytes = optimizer_bytes(trained, run.optimizer);
  costs.recompute = run.parallel.recompute;
}

//! The backward pass repeats the forward passes of recomputed modules, whose activations are not kept.
void set_recomputation(plan::StageCosts& costs, const graph::Graph& graph,
                       const std::vector<std::string>& modules, double flops_per_second) {
  const pipe::RecomputedCosts recomputed = pipe::recomputed_costs(graph, modules);
  costs.activation_bytes -= recomputed.bytes;
  costs.input += recomputed.flops / flops_per_second;
}

//! With times at `kDefaultFlops`.
plan::Costs costs_of(const SplitModel& model, const train::RunOptions& run) {
  const double flops_per_second = kDefaultFlops * run.parallel.tp;
  plan::Costs costs = pipe::stage_costs(model.pipe.split(), flops_per_second);
  const std::vector<std::string> modules =
      train::matching_modules(run.parallel.recompute_modules, module_paths(model.pipe.graph()));
  const std::vector<std::int64_t> elements =
      local_elements(model.pipe.graph(), model.tensor_plan, run.parallel.tp);
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    const graph::StageGraph& stage = model.pipe.split().stages[s];
    set_local_bytes(costs.stages[s], stage, elements, run);
    set_recomputation(costs.stages[s], stage.graph, modules, flops_per_second);
  }
  return costs;
}

//! Changes times at `kDefaultFlops` to those at another rate.
void scale_times(plan::Costs& costs, double flops_per_second) {
  const double factor = kDefaultFlops / flops_per_second;
  for (plan::StageCosts& stage : costs.stages)
    for (double* const time : {&stage.forward, &stage.input, &stage.weight}) *time *= factor;
}

schedule::Program program_of(const train::ParallelOptions& options, const plan::Costs& costs,
                             c10::Device device) {
  const auto* const kind = std::get_if<schedule::ScheduleKind>(&options.schedule);
  const schedule::Schedule schedule =
      options.table ? *options.table
      : kind        ? make_schedule(*kind, {options.pp, static_cast<int>(costs.stages.size()) / options.pp,
                                            options.microbatches})
                    : auto_schedule(options, costs, device);
  schedule::LowerOptions lowering;
  for (const auto& [edge, bytes] : costs.skip_bytes) lowering.skips.push_back({edge.first, edge.second});
  lowering.shard = lowering.reduce_grad = options.dp > 1 || options.sharding == train::Sharding::Full;
  return make_program(schedule, schedule::SendMode::Buffered, lowering);
}

StageForecast describe(const pipe::Pipe& pipe, StageId stage) {
  const graph::Graph& graph = pipe.stage_graph(stage);
  const graph::GraphCosts costs = graph_costs(graph);
  StageForecast result{
      .modules = modules_of(pipe, stage), .parameter_bytes = costs.parameter_bytes, .flops = costs.flops};
  result.parameters = static_cast<std::int64_t>(elements_of(graph, graph::Slot::Kind::Parameter));
  for (const graph::Slot& slot : graph.slots)
    if (const auto& meta = graph.value(slot.value).meta; slot.kind == graph::Slot::Kind::Buffer && meta)
      result.buffer_bytes += meta->nbytes();
  return result;
}

RankForecast memory_of(Rank rank, const schedule::Program& program, const plan::Costs& costs,
                       const plan::Simulation& simulation) {
  RankForecast memory;
  for (const StageId stage : program.placement().stages_of(rank)) {
    const plan::StageCosts& one = costs.stages[stage.index()];
    memory.parameters += one.parameter_bytes;
    memory.gradients += one.gradient_bytes;
    memory.optimizer += one.optimizer_bytes;
  }
  memory.in_flight = simulation.ranks[rank.index()].peak_memory - memory.peak();
  return memory;
}

void add_notes(std::vector<std::string>& notes, const train::RunOptions& run) {
  if (!run.parallel.table && is_auto(run.parallel.schedule))
    notes.emplace_back(
        "--schedule auto: the run measures three steps and plans its schedule from them; this one is planned "
        "from operation counts.");
  if (run.precision != train::Precision::Float32)
    notes.push_back("--precision " + std::string(to_string(run.precision)) +
                    ": activations are counted in float32, so their memory is an upper bound.");
  if (!run.parallel.recompute_modules.empty())
    notes.emplace_back(
        "--recompute: the activations of the module that is being recomputed are not counted.");
  if (run.parallel.tp > 1)
    notes.emplace_back(
        "--tp: activations are counted in full on every tensor-parallel rank, so their memory is an upper "
        "bound.");
}

// All devices of a machine count like the first one.
void add_memory_note(std::vector<std::string>& notes, const std::vector<RankForecast>& ranks,
                     c10::Device device) {
  if (device.is_cpu()) return;
  const std::uint64_t total = train::device_memory_bytes(device);
  const auto largest = std::max_element(ranks.begin(), ranks.end(),
                                        [](const auto& a, const auto& b) { return a.peak() < b.peak(); });
  if (largest == ranks.end() || largest->peak() <= total) return;
  notes.push_back(str_cat("Pipeline rank ", largest - ranks.begin(), " needs ", format_bytes(largest->peak()),
                          ", but its device has ", format_bytes(total),
                          ". Use more ranks, --recompute or --sharding."));
}

}  // namespace

std::uint64_t optimizer_bytes(const std::vector<value::NamedTensor>& parameters,
                              const train::OptimizerOptions& options) {
  std::uint64_t bytes = 0;
  for (const train::Optimizer::State& state : train::Optimizer(parameters, options).states())
    for (const value::NamedTensor& item : state.tensors) bytes += item.tensor.nbytes();
  return bytes;
}

RunForecast forecast(const TrainSettings& request, double flops_per_second) {
  const train::RunOptions& run = request.run;
  std::vector<std::int64_t> rows = microbatch_rows(run);
  const SplitModel model =
      request.built_in() ? split_gpt(request, rows.front()) : split_archive(request, rows.front());
  plan::Costs costs = costs_of(model, run);
  // Rounding at a measured rate could change the schedule of Auto from call to call.
  schedule::Program program = program_of(run.parallel, costs, device_of(request.device));
  scale_times(costs, flops_per_second);
  plan::Simulation simulation = simulate(program, costs, {.memory_samples = false, .critical_path = false});
  std::vector<StageForecast> stages;
  for (int s = 0; s < model.pipe.num_stages(); ++s) stages.push_back(describe(model.pipe, StageId(s)));
  std::vector<RankForecast> ranks;
  for (int r = 0; r < program.ranks(); ++r) ranks.push_back(memory_of(Rank(r), program, costs, simulation));
  std::vector<std::string> notes;
  if (auto warning = balance_warning(request)) notes.push_back(*std::move(warning));
  notes.insert(notes.end(), request.notes.begin(), request.notes.end());
  notes.insert(notes.end(), model.notes.begin(), model.notes.end());
  add_notes(notes, run);
  add_memory_note(notes, ranks, device_of(request.device));
  const graph::Graph& graph = model.pipe.graph();
  return {.model = model.summary,
          .parameters = static_cast<std::int64_t>(elements_of(graph, graph::Slot::Kind::Parameter)),
          .trained_parameters = trained_parameters(graph, run),
          .parameter_bytes = graph_costs(graph).parameter_bytes,
          .master_dtypes = master_dtypes(graph, run),
          .data = model.data,
          .rows = std::move(rows),
          .split = model.split,
          .split_points = model.split_points,
          .balance = model.balance,
          .stages = std::move(stages),
          .tied = model.pipe.split().shared,
          .flops_per_second = flops_per_second,
          .costs = std::move(costs),
          .program = std::move(program),
          .simulation = std::move(simulation),
          .ranks = std::move(ranks),
          .notes = std::move(notes)};
}

}  // namespace penstock::tool
