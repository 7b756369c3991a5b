// `penstock eval`: runs an exported model on several ranks over the examples of a safetensors file. The
// command starts itself once per rank. The rank with the last stage of the first replica writes the outputs.
#include "base/json.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/paths.h"
#include "cli/verbosity.h"
#include "commands/changed_weights.h"
#include "commands/commands.h"
#include "commands/launching.h"
#include "commands/model_data.h"
#include "commands/pipe_options.h"
#include "commands/trained_weights.h"
#include "parallel/graph/require_parallel_plan.h"
#include "train/display/failure_report.h"
#include "train/preflight/model_checks.h"
#include "train/preflight/output_paths.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/comm/world.h>
#include <penstock/graph/graph_module.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/pipe/pipe.h>
#include <penstock/schedule/generate.h>
#include <penstock/tensor/mesh.h>
#include <penstock/value/tensor_meta.h>
#include <penstock/value/tree.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

namespace penstock::tool {
namespace {

struct EvalJob {
  std::string model, input, output, checkpoint;
  std::vector<std::string> renames;  //!< `FROM=TO`
  SplitOptions split;
  RankOptions rank_options;
  RankCounts ranks;
  bool json = false;
  Verbosity verbosity;
};

//! The split given by the options. By default, a balanced split into the number of stages that the schedule
//! needs.
pipe::SplitSpec spec_of(const EvalJob& job) {
  if (const auto spec = job.split.spec()) return *spec;
  const int usual = info_of(schedule::parse_schedule_kind(job.rank_options.schedule)).default_stages_per_rank;
  const auto each = static_cast<int>(job.rank_options.stages_per_rank.value_or(usual));
  return pipe::Balanced{job.ranks.pp * each, job.split.by};
}

std::string report(const EvalJob& job, const std::map<std::string, at::Tensor>& outputs, std::int64_t rows,
                   int microbatches, int stages, double seconds) {
  if (job.json) {
    JsonWriter json;
    json.begin_object().field("examples", rows).field("microbatches", microbatches);
    json.field("ranks", job.ranks.all()).field("stages", stages).field("seconds", seconds);
    json.field("device", device_of(job.rank_options.device).str());
    json.key("outputs").begin_object();
    for (const auto& [name, tensor] : outputs) {
      json.key(name)
          .begin_object()
          .field("dtype", value::dtype_name(tensor.scalar_type()))
          .key("shape")
          .begin_array();
      for (const std::int64_t size : tensor.sizes()) json.value(size);
      json.end_array().end_object();
    }
    return json.end_object().end_object().text() + "\n";
  }
  if (job.verbosity.quiet) return "written to " + job.output + "\n";
  const int ranks = job.ranks.all(), replicas = job.ranks.dp;
  std::string text =
      str_cat(rows, " examples in ", counted(microbatches, "microbatch"),
              (replicas == 1 ? "" : str_cat(" per replica, ", replicas, " replicas,")), " through ",
              counted(stages, "stage"), " on ", counted(ranks, "rank"), ": ", format_seconds(seconds), "\n");
  for (const auto& [name, tensor] : outputs) {
    text +=
        "  " + name + "  " + value::dtype_name(tensor.scalar_type()) + format_shape(tensor.sizes()) + "\n";
  }
  return text + "written to " + job.output + "\n";
}

//! The device on which --balance time measures.
c10::Device measuring_device(const EvalJob& job) {
  return job.split.by == pipe::BalanceBy::MeasuredTime ? device_of(job.rank_options.device) : c10::kCPU;
}

struct Loaded {
  ModelData data;  // the rows of this replica
  int microbatches;
  std::vector<std::int64_t> rows;  // per replica
  pipe::Pipe pipe;
};

//! Loads the model and the examples of a replica. Throws UsageError if they do not match each other or the
//! ranks.
Loaded load(const EvalJob& job, int replica) {
  const auto [graph, source] =
      open_with_weights(job.model, job.checkpoint, job.input, read_renames(job.renames));
  const ModelData all = read_model_data(graph, job.input);
  check_example_shapes(graph, all.leaves, job.input);
  check_tokens(graph, all.leaves);
  ModelData data;
  int microbatches = 0;
  std::vector<std::int64_t> rows;
  for (int other = 0; other < job.ranks.dp; ++other) {
    ModelData part = all.part(graph, job.ranks.dp, other);
    const int needed = part.microbatches_for(graph, job.rank_options.microbatches, job.ranks.pp);
    rows.push_back(part.rows);
    if (other != replica) continue;
    data = std::move(part);
    microbatches = needed;
  }
  for (const std::int64_t count : value::chunk_sizes(data.rows, microbatches))
    check_inputs(graph, rows_of(data.leaves, 0, count));
  const std::vector<c10::IValue> example = data.example(microbatches, measuring_device(job));
  pipe::Pipe pipe(graph, source, spec_of(job), {}, example);
  const int stages = pipe.num_stages();
  if (stages % job.ranks.pp != 0) {
    throw UsageError(str_cat(stages, " stages cannot be divided evenly among ", job.ranks.pp, " ranks"), {},
                     "make the number of stages a multiple of the number of pipeline ranks");
  }
  check_shape(schedule::parse_schedule_kind(job.rank_options.schedule),
              {job.ranks.pp, stages / job.ranks.pp, microbatches});
  return {std::move(data), microbatches, std::move(rows), std::move(pipe)};
}

//! The tensor-parallel plan of the complete model. Each stage applies the entries that match its modules and
//! returns full tensors.
parallel::ParallelPlan tensor_plan(const graph::Graph& graph, int ranks) {
  parallel::FoundPlan found = parallel::require_parallel_plan(graph, ranks, "use --tp 1");
  found.plan.emplace_back("", parallel::PrepareModuleOutput{tensor::Replicate(), true});
  return std::move(found.plan);
}

using Outputs = std::map<std::string, at::Tensor>;

//! Gathers the outputs of all replicas on replica 0. Returns an empty map on the other replicas.
Outputs gather(const comm::Group& replicas, const Outputs& local, const std::vector<std::int64_t>& rows) {
  if (replicas.rank() != 0) {
    c10::Dict<std::string, at::Tensor> named;
    for (const auto& [name, tensor] : local) named.insert(name, tensor.contiguous());
    replicas.send_object(named, 0);
    return {};
  }
  std::vector<Outputs> parts{local};
  for (int other = 1; other < replicas.size(); ++other) {
    Outputs& part = parts.emplace_back();
    for (const auto& item : replicas.recv_object(other).toGenericDict())
      part.emplace(item.key().toStringRef(), item.value().toTensor());
  }
  return join_outputs(parts, rows);
}

c10::IValue on_device(const c10::IValue& tree, at::Device device) {
  return value::map_tensors(tree, [&](const at::Tensor& tensor) { return tensor.to(device); });
}
value::Args on_device(value::Args args, at::Device device) {
  for (c10::IValue& arg : args) arg = on_device(arg, device);
  return args;
}
value::Kwargs on_device(value::Kwargs kwargs, at::Device device) {
  for (auto& [name, value] : kwargs) value = on_device(value, device);
  return kwargs;
}

comm::InitOptions init_options(const EvalJob& job) {
  return {.backend = comm::parse_backend(job.rank_options.backend),
          .device = device_of(job.rank_options.device)};
}

//! Runs one rank of the evaluation.
void run_rank(const EvalJob& job, const comm::World& world) {
  const auto started = std::chrono::steady_clock::now();
  const tensor::DeviceMesh mesh(world.group(), {job.ranks.pp, job.ranks.dp, job.ranks.tp},
                                {"pp", "dp", "tp"});
  const comm::Group& pipeline_group = mesh.group("pp");
  const comm::Group& replicas = mesh.group("dp");
  auto [data, microbatches, rows, pipe] = load(job, replicas.rank());
  const parallel::ParallelPlan plan =
      job.ranks.tp > 1 ? tensor_plan(pipe.graph(), job.ranks.tp) : parallel::ParallelPlan{};
  const int stages = pipe.num_stages();
  const schedule::ScheduleShape shape{job.ranks.pp, stages / job.ranks.pp, microbatches};
  const schedule::Schedule schedule =
      make_schedule(schedule::parse_schedule_kind(job.rank_options.schedule), shape);
  std::vector<runtime::PipelineStage> local_stages;
  for (const StageId stage : schedule.placement.stages_of(Rank(pipeline_group.rank()))) {
    if (!plan.empty()) {
      parallelize_module(*pipe.stage_module(stage), mesh["tp"], plan, parallel::UnknownPath::Ignore);
    }
    local_stages.push_back(pipe.build_stage(stage, world.device(), pipeline_group));
  }
  const bool last = std::any_of(local_stages.begin(), local_stages.end(),
                                [](const auto& stage) { return stage.is_last(); });
  const bool first = std::any_of(local_stages.begin(), local_stages.end(),
                                 [](const auto& stage) { return stage.is_first(); });
  runtime::PipelineSchedule pipeline(local_stages, schedule, pipe.pipeline_options());
  const runtime::StepResult result =
      pipeline.eval(first ? on_device(data.args, world.device()) : value::Args{}, {},
                    {.kwargs = on_device(data.kwargs, world.device())});
  if (!last || mesh.group("tp").rank() != 0) return;
  const Outputs outputs = gather(replicas,
                                 named_outputs(pipe.graph(), on_device(result.outputs, at::kCPU),
                                               value::chunk_sizes(data.rows, microbatches)),
                                 rows);
  if (replicas.rank() != 0) return;
  checkpoint::save_safetensors(job.output, outputs);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
  const std::int64_t examples = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  print(report(job, outputs, examples, microbatches, stages, spent.count()));
}

//! The command line of a rank. It includes the split positions found here, because times measured on each
//! rank would give different splits.
std::vector<std::string> command_line_of(const EvalJob& job, const graph::SplitPositions& positions) {
  std::vector<std::string> numbers;
  for (const std::size_t position : positions) numbers.push_back(std::to_string(position));
  std::vector<std::string> args{"--input", job.input, "--output", job.output};
  if (!job.model.empty()) args.insert(args.begin(), job.model);
  args.insert(args.end(), {"--pp", std::to_string(job.ranks.pp), "--dp", std::to_string(job.ranks.dp)});
  args.insert(args.end(), {"--tp", std::to_string(job.ranks.tp), "--schedule", job.rank_options.schedule});
  if (job.rank_options.microbatches)
    args.insert(args.end(), {"--microbatches", std::to_string(*job.rank_options.microbatches)});
  args.insert(args.end(), {"--backend", job.rank_options.backend});
  args.insert(args.end(), {"--device", job.rank_options.device == DeviceChoice::Cuda ? "cuda" : "cpu"});
  if (!job.checkpoint.empty()) args.insert(args.end(), {"--checkpoint", job.checkpoint});
  if (!job.renames.empty()) args.insert(args.end(), {"--rename", join(job.renames, ",")});
  if (!positions.empty()) args.insert(args.end(), {"--cuts", join(numbers, ",")});
  if (job.json) args.emplace_back("--json");
  if (job.verbosity.quiet) args.emplace_back("--quiet");
  return args;
}

//! Checks files and options once, before the ranks start. Returns the split positions.
graph::SplitPositions check(const EvalJob& job) {
  check_safetensors_output(job.output, "--output");
  check_output_file("--output", job.output, {job.model, job.input});
  const Loaded checked = load(job, 0);
  if (job.ranks.tp > 1) tensor_plan(checked.pipe.graph(), job.ranks.tp);
  // libtorch caches the memory of the measured model, which the ranks need.
  if (!measuring_device(job).is_cpu()) at::accelerator::emptyCache();
  return checked.pipe.split_positions();
}

}  // namespace

int eval_command(Arguments& arguments) {
  EvalJob job;
  arguments.positional("MODEL.pt2", job.model,
                       "an archive written by torch.export.save [with --checkpoint: the built-in GPT]",
                       Arguments::Need::Optional);
  arguments.option("--input", job.input,
                   "a safetensors file with one tensor per model input; dim 0 is the example index",
                   Arguments::Need::Required);
  arguments.option("--output", job.output, "the safetensors file for the outputs", Arguments::Need::Required);
  arguments.option("--checkpoint", job.checkpoint, kTrainedHelp);
  arguments.option("--rename", job.renames, kRenameHelp);
  job.split.declare(arguments);
  job.rank_options.declare(arguments, "GPipe");
  job.verbosity.declare(arguments);
  arguments.parse();
  job.verbosity.apply();
  job.json = arguments.json();
  job.ranks = job.rank_options.resolve();
  schedule::parse_schedule_kind(job.rank_options.schedule);
  if (is_rank_of("eval")) {
    at::set_num_threads(1);
    run_rank(job, comm::init(init_options(job)));
    return 0;
  }
  refuse_as_rank("eval");
  const graph::SplitPositions positions = as_usage([&] { return check(job); });
  if (!job.json && !job.verbosity.quiet) print(job.rank_options.device_reason + "\n");
  if (job.ranks.all() == 1) {
    comm::run_thread_ranks(
        1, [&](comm::World& world) { run_rank(job, world); }, init_options(job));
    return 0;
  }
  comm::LaunchOptions options = ranks_of("eval", job.ranks.all(), command_line_of(job, positions));
  job.verbosity.pass_to(options.environment);
  FailureReport failures({.ranks = job.ranks.all()});
  failures.attach(options);
  std::string warnings;  // shown only if the run succeeds; the failure report replaces them
  options.on_line = [&](Rank rank, comm::OutputStream stream, std::string_view line) {
    if (failures.take(rank, stream, line)) return;
    if (stream == comm::OutputStream::Err) {
      warnings += std::string(line) + "\n";
    } else {
      print(std::string(line) + "\n");
    }
  };
  const comm::LaunchResult result = launch(options);
  if (result.ok) std::fputs(warnings.c_str(), stderr);
  return failures.finish(result);
}

}  // namespace penstock::tool
