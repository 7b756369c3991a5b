// Prints the forecast of a run.
#include "train/forecast/dry_run.h"

#include "base/json.h"
#include "base/text.h"
#include "report/stages.h"
#include "report/text_table.h"
#include "train/forecast/flop_rate.h"
#include "train/forecast/forecast.h"
#include "train/preflight/model_checks.h"

#include <penstock/checkpoint/checkpoint.h>

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

namespace penstock::tool {
namespace {

constexpr std::size_t kLabelWidth = 12;

bool is_launched(const comm::LaunchedRank& found) {
  return found.launcher != comm::LauncherKind::None && found.world_size > 1;
}

//! The number of libtorch threads of a rank. `penstock train` starts several ranks with OMP_NUM_THREADS=1,
//! unless it is set; other launchers start them with our environment.
int threads_per_rank(const comm::LaunchedRank& found, int ranks) {
  const bool one = ranks > 1 && !is_launched(found) && std::getenv("OMP_NUM_THREADS") == nullptr;
  return one ? 1 : at::get_num_threads();
}

//! Everything that the report shows.
struct DryRun {
  const TrainSettings& request;
  const comm::LaunchedRank& launcher;
  RunForecast run;
  std::vector<std::string> missing;         //!< directories that the run would create
  std::optional<std::int64_t> resume_step;  //!< of the newest complete checkpoint, with --resume

  const train::RunOptions& options() const { return request.run; }
  double step_time() const { return run.simulation.step_time * static_cast<double>(options().accumulate); }
};

std::string number(double value) {
  return formatted("%.4g", value);
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this machine";
}

std::optional<std::int64_t> newest_checkpoint(const train::CheckpointOptions& options) {
  if (!options.resume) return std::nullopt;
  std::optional<std::int64_t> step;
  for (const checkpoint::CheckpointLocation& location : checkpoint::list_checkpoints(*options.directory))
    if (location.complete) step = location.step;
  return step;
}

//! The world ranks of a pipeline rank: `4-7`.
std::string world_ranks(const train::ParallelOptions& options, int rank) {
  const int count = options.tp * options.dp;
  const std::string first = std::to_string(rank * count);
  return count == 1 ? first : str_cat(first, "-", (rank + 1) * count - 1);
}

//! Ends the list early if it would be wider than the rest of a line.
std::string shortened(const std::string& list) {
  constexpr std::size_t most = 50;
  if (list.size() <= most) return list;
  return list.substr(0, list.rfind(", ", most)) + ", …";
}

//! Breaks the text at spaces into lines of at most 100 columns. All lines but the first are indented.
std::string wrapped(const std::string& text, std::size_t indent) {
  constexpr std::size_t columns = 100;
  std::string result;
  std::size_t column = indent;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (column > indent && column + 1 + word.size() > columns) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result;
}

//! `1536 of 68000 parameters (2.3%)`.
std::string trained_text(const RunForecast& run) {
  const double share = static_cast<double>(run.trained_parameters) / static_cast<double>(run.parameters);
  return str_cat(run.trained_parameters, " of ", run.parameters, " parameters (", format_share(share), ")");
}

std::string data_text(const DataForecast& data) {
  std::string text = data.origin;
  if (data.examples > 0) text += ": " + counted(data.examples, "example") + "; " + join(data.tensors, ", ");
  if (data.characters > 0)
    text += str_cat(": ", counted(data.characters, "character"), ", ", data.vocabulary, " different");
  if (data.tokens > 0)
    text += str_cat(": ", counted(data.tokens, "token"), ", vocabulary of ", data.vocabulary);
  if (data.validation_rows > 0) text += "; " + counted(data.validation_rows, "row") + " for validation";
  return text;
}

std::string batch_text(const DryRun& dry) {
  const train::RunOptions& run = dry.options();
  const std::vector<std::int64_t>& rows = dry.run.rows;
  std::string text = counted(run.batch, "example");
  if (dry.request.built_in())
    text += " of " + counted(dry.request.gpt.context, dry.run.data.tokens > 0 ? "token" : "character");
  text += " per step: ";
  if (run.parallel.dp > 1) text += counted(run.parallel.dp, "replica") + " x ";
  if (run.accumulate > 1) text += str_cat(run.accumulate, " passes x ");
  text += counted(static_cast<std::int64_t>(rows.size()), "microbatch");
  return str_cat(text, " of ", (rows.front() == rows.back() ? "" : str_cat(rows.back(), " to ")),
                 rows.front());
}

const char* sharded_state(train::Sharding sharding) {
  if (sharding == train::Sharding::Optimizer) return "optimizer states";
  return sharding == train::Sharding::Gradients ? "gradients and optimizer states" : "all states";
}

std::string topology_text(const DryRun& dry) {
  const train::ParallelOptions& parallel = dry.options().parallel;
  std::string text =
      str_cat(counted(parallel.ranks(), "rank"),
              (is_launched(dry.launcher) ? " of " + std::string(to_string(dry.launcher.launcher))
                                         : " on " + host_name()),
              ": pp ", parallel.pp, " x tp ", parallel.tp, " x dp ", parallel.dp);
  if (parallel.sharding != train::Sharding::None)
    text += str_cat(", ", sharded_state(parallel.sharding), " sharded over dp");
  return text + "; backend " + dry.request.backend + ", device " + device_of(dry.request.device).str();
}

std::string recomputation_text(const train::ParallelOptions& parallel) {
  if (!parallel.recompute_modules.empty())
    return ", activations of " + join(parallel.recompute_modules, ", ") + " are recomputed";
  return parallel.recompute ? ", activations are recomputed" : "";
}

std::string schedule_text(const DryRun& dry) {
  const schedule::Program& program = dry.run.program;
  const int per_rank = program.num_stages() / program.ranks();
  return str_cat(program.name(), ": ", counted(program.num_stages(), "stage"), ", ", per_rank, " per rank",
                 recomputation_text(dry.options().parallel));
}

std::string split_text(const DryRun& dry) {
  if (dry.run.split_points.empty()) return "none: one stage";
  return "before " + join(dry.run.split_points, ", ") + "; " + dry.run.balance;
}

std::string optimizer_text(const train::RunOptions& run, const std::vector<std::string>& master) {
  std::string text = std::string(to_string(run.optimizer.kind)) + ", learning rate " +
                     number(run.learning_rate.peak) + " (" + std::string(to_string(run.learning_rate.kind));
  if (run.learning_rate.warmup > 0) text += ", " + counted(run.learning_rate.warmup, "warmup step");
  text += ")";
  if (run.optimizer.momentum > 0) text += ", momentum " + number(run.optimizer.momentum);
  if (run.optimizer.weight_decay > 0) text += ", weight decay " + number(run.optimizer.weight_decay);
  if (!run.parameters.no_decay.empty()) text += " (not for " + join(run.parameters.no_decay, ", ") + ")";
  for (const train::RateScale& scale : run.parameters.rate_scales)
    text += ", learning rate of " + scale.pattern + " x " + number(scale.factor);
  if (!run.parameters.freeze.empty()) text += ", frozen: " + join(run.parameters.freeze, ", ");
  if (run.grad_clip) text += ", gradients clipped to norm " + number(*run.grad_clip);
  if (run.precision == train::Precision::Bfloat16) text += ", autocast to bfloat16";
  if (run.precision == train::Precision::Float16) text += ", autocast to float16";
  if (!master.empty()) text += ", parameters in " + join(master, " and ") + " with float32 master weights";
  return text;
}

std::string steps_text(const DryRun& dry) {
  std::string text = std::to_string(dry.options().steps);
  if (dry.resume_step) text += str_cat(", from step ", *dry.resume_step + 1);
  if (dry.options().eval_every) text += str_cat(", validation every ", *dry.options().eval_every);
  return text;
}

std::string checkpoint_text(const DryRun& dry) {
  const train::CheckpointOptions& options = dry.options().checkpoint;
  if (!options.directory) return "none (--checkpoint DIR)";
  std::string text = options.directory->string() + ": ";
  if (dry.resume_step) text += "resumes from " + checkpoint::checkpoint_name(*dry.resume_step) + "; saves ";
  return str_cat(text, (options.every ? "every " + counted(*options.every, "step") + " and " : ""),
                 "at the end, keeps the last ", options.keep);
}

std::string files_text(const TrainSettings& request) {
  std::vector<std::string> files;
  for (const std::string& file : {request.log_json, request.log_csv, request.tensorboard, request.timeline,
                                  request.trace, request.profile})
    if (!file.empty()) files.push_back(file);
  return files.empty() ? "none" : join(files, ", ");
}

std::string stage_table(const DryRun& dry) {
  double work = 0;
  for (const StageForecast& stage : dry.run.stages) work += stage.flops;
  std::vector<std::vector<std::string>> rows{{"stage", "rank", "parameters", "bytes", "work", "modules"}};
  for (std::size_t s = 0; s < dry.run.stages.size(); ++s) {
    const StageForecast& stage = dry.run.stages[s];
    const Rank rank = dry.run.program.placement().stage_to_rank()[s];
    rows.push_back({std::to_string(s), world_ranks(dry.options().parallel, rank.value),
                    std::to_string(stage.parameters), format_bytes(stage.parameter_bytes),
                    format_share(work > 0 ? stage.flops / work : 0),
                    shortened(module_ranges(stage.modules))});
  }
  std::string text = show_table(rows);
  for (const graph::SharedSlot& slot : dry.run.tied) {
    if (!slot.is_parameter) continue;
    std::vector<std::int64_t> stages;
    for (const StageId stage : slot.stages) stages.push_back(stage.value);
    text += "tied: " + join(slot.names, " = ") + " in stages " + join(stages, ", ") + "\n";
  }
  return text;
}

std::string memory_table(const DryRun& dry) {
  std::vector<std::vector<std::string>> rows{
      {"rank", "stages", "parameters", "gradients", "optimizer", "activations", "peak", "bubble"}};
  for (std::size_t r = 0; r < dry.run.ranks.size(); ++r) {
    const RankForecast& rank = dry.run.ranks[r];
    std::vector<std::int64_t> stages;
    for (const StageId stage : dry.run.program.placement().stages_of(Rank(static_cast<std::int64_t>(r))))
      stages.push_back(stage.value);
    rows.push_back({world_ranks(dry.options().parallel, static_cast<int>(r)), join(stages, ", "),
                    format_bytes(rank.parameters), format_bytes(rank.gradients), format_bytes(rank.optimizer),
                    format_bytes(rank.in_flight), format_bytes(rank.peak()),
                    format_share(dry.run.simulation.ranks[r].bubble)});
  }
  return show_table(rows);
}

std::string to_text(const DryRun& dry) {
  std::string text = "dry run: no ranks are started, no files are written\n\n";
  const auto line = [&](std::string label, const std::string& value) {
    label.resize(kLabelWidth, ' ');
    text += label + wrapped(value, kLabelWidth) + "\n";
  };
  line("model", dry.run.model + " (" + format_bytes(dry.run.parameter_bytes) + ")");
  if (dry.run.trained_parameters < dry.run.parameters) line("trained", trained_text(dry.run));
  line("data", data_text(dry.run.data));
  line("batch", batch_text(dry));
  line("steps", steps_text(dry));
  line("optimizer", optimizer_text(dry.options(), dry.run.master_dtypes));
  line("topology", topology_text(dry));
  line("schedule", schedule_text(dry));
  line("split", split_text(dry));
  line("checkpoint", checkpoint_text(dry));
  line("files", files_text(dry.request));
  if (!dry.missing.empty()) line("to create", join(dry.missing, ", "));
  text += "\n" + stage_table(dry) + "\npredicted memory per rank\n" + memory_table(dry);
  text += "\npredicted step  " + format_seconds(dry.step_time()) + " at " +
          number(dry.run.flops_per_second / 1e9) + " GFLOP/s per rank, bubble " +
          format_share(dry.run.simulation.bubble) + "\n";
  text +=
      "Times follow from operation counts at the speed of a matrix product on this machine. They assume\n"
      "that ranks share no cores and that transfers are free. Memory does not include libtorch and\n"
      "message buffers.\n";
  for (const std::string& note : dry.run.notes) text += wrapped(note, 0) + "\n";
  if (dry.request.verbosity.verbose) text += "\n# resolved configuration\n" + dry.request.resolved_config;
  return text;
}

void write_list(JsonWriter& json, const std::string& key, const std::vector<std::string>& items) {
  json.key(key).begin_array();
  for (const std::string& item : items) json.value(item);
  json.end_array();
}

void write_ranks_of(JsonWriter& json, const train::ParallelOptions& options, int rank) {
  const int count = options.tp * options.dp;
  json.key("world_ranks").begin_array();
  for (int i = 0; i < count; ++i) json.value(rank * count + i);
  json.end_array();
}

void write_stages(JsonWriter& json, const DryRun& dry) {
  json.key("split").begin_array();
  for (const std::size_t position : dry.run.split.positions) json.value(static_cast<std::uint64_t>(position));
  json.end_array();
  write_list(json, "split_points", dry.run.split_points);
  json.field("balance", dry.run.balance).key("stages").begin_array();
  for (std::size_t s = 0; s < dry.run.stages.size(); ++s) {
    const StageForecast& stage = dry.run.stages[s];
    const plan::StageCosts& local = dry.run.costs.stages[s];
    const int rank = dry.run.program.placement().stage_to_rank()[s].value;
    json.begin_object().field("stage", static_cast<std::int64_t>(s)).field("pipeline_rank", rank);
    write_ranks_of(json, dry.options().parallel, rank);
    write_list(json, "modules", stage.modules);
    json.field("parameters", stage.parameters).field("parameter_bytes", stage.parameter_bytes);
    json.field("buffer_bytes", stage.buffer_bytes).field("flops", stage.flops).key("per_rank").begin_object();
    json.field("parameter_bytes", local.parameter_bytes).field("gradient_bytes", local.gradient_bytes);
    json.field("optimizer_bytes", local.optimizer_bytes).field("activation_bytes", local.activation_bytes);
    json.field("output_bytes", local.output_bytes).end_object().end_object();
  }
  json.end_array().key("tied").begin_array();
  for (const graph::SharedSlot& slot : dry.run.tied) {
    json.begin_object();
    write_list(json, "names", slot.names);
    json.key("stages").begin_array();
    for (const StageId stage : slot.stages) json.value(stage.value);
    json.end_array().end_object();
  }
  json.end_array();
}

void write_ranks(JsonWriter& json, const DryRun& dry) {
  json.key("ranks").begin_array();
  for (std::size_t r = 0; r < dry.run.ranks.size(); ++r) {
    const RankForecast& rank = dry.run.ranks[r];
    const plan::RankReport& report = dry.run.simulation.ranks[r];
    const Rank id(static_cast<std::int64_t>(r));
    json.begin_object().field("pipeline_rank", id.value);
    write_ranks_of(json, dry.options().parallel, id.value);
    json.key("stages").begin_array();
    for (const StageId stage : dry.run.program.placement().stages_of(id)) json.value(stage.value);
    json.end_array().field("parameter_bytes", rank.parameters).field("gradient_bytes", rank.gradients);
    json.field("optimizer_bytes", rank.optimizer).field("in_flight_bytes", rank.in_flight);
    json.field("peak_memory", rank.peak()).field("busy", report.busy).field("bubble", report.bubble);
    json.end_object();
  }
  json.end_array();
}

void write_run(JsonWriter& json, const DryRun& dry) {
  const train::RunOptions& run = dry.options();
  const DataForecast& data = dry.run.data;
  json.key("model").begin_object().field("summary", dry.run.model).field("file", dry.request.model);
  json.field("parameters", dry.run.parameters).field("trained_parameters", dry.run.trained_parameters);
  json.field("parameter_bytes", dry.run.parameter_bytes).end_object();
  json.key("data").begin_object().field("origin", data.origin).field("examples", data.examples);
  write_list(json, "tensors", data.tensors);
  json.field("characters", data.characters).field("tokens", data.tokens).field("vocabulary", data.vocabulary);
  json.field("validation_rows", data.validation_rows).end_object();
  json.field("batch", run.batch).field("accumulate", run.accumulate).key("microbatch_rows").begin_array();
  for (const std::int64_t rows : dry.run.rows) json.value(rows);
  json.end_array().field("steps", run.steps).field("first_step", dry.resume_step.value_or(0) + 1);
  json.key("optimizer").begin_object().field("kind", to_string(run.optimizer.kind));
  json.field("lr", run.learning_rate.peak).field("lr_schedule", to_string(run.learning_rate.kind));
  json.field("warmup", run.learning_rate.warmup).field("momentum", run.optimizer.momentum);
  json.field("weight_decay", run.optimizer.weight_decay).field("grad_clip", run.grad_clip.value_or(0));
  json.field("precision", to_string(run.precision)).field("param_dtype", to_string(dry.request.param_dtype));
  write_list(json, "master_weights_of", dry.run.master_dtypes);
  json.end_object();
  json.key("checkpoint").begin_object().field("directory", dry.request.checkpoint);
  json.field("every", run.checkpoint.every.value_or(0)).field("keep", run.checkpoint.keep);
  json.field("resume", run.checkpoint.resume).end_object();
}

std::string to_json(const DryRun& dry) {
  const train::ParallelOptions& parallel = dry.options().parallel;
  const schedule::Program& program = dry.run.program;
  JsonWriter json;
  json.begin_object().field("dry_run", true);
  write_run(json, dry);
  json.key("topology").begin_object().field("ranks", parallel.ranks()).field("pp", parallel.pp);
  json.field("tp", parallel.tp).field("dp", parallel.dp).field("sharding", to_string(parallel.sharding));
  json.field("launcher", is_launched(dry.launcher) ? to_string(dry.launcher.launcher) : "penstock");
  json.field("host", host_name())
      .field("backend", dry.request.backend)
      .field("device", device_of(dry.request.device).str())
      .end_object();
  json.key("schedule").begin_object().field("name", program.name()).field("stages", program.num_stages());
  json.field("stages_per_rank", program.num_stages() / program.ranks());
  json.field("microbatches", program.microbatches()).field("recompute", parallel.recompute);
  write_list(json, "recompute_modules", parallel.recompute_modules);
  json.end_object();
  write_stages(json, dry);
  write_ranks(json, dry);
  json.key("prediction").begin_object().field("step_time", dry.step_time());
  json.field("bubble", dry.run.simulation.bubble);
  json.field("flops_per_second", dry.run.flops_per_second).end_object();
  write_list(json, "would_create", dry.missing);
  write_list(json, "notes", dry.run.notes);
  return json.field("config", dry.request.resolved_config).end_object().text() + "\n";
}

}  // namespace

std::string dry_run_report(const TrainSettings& request, const comm::LaunchedRank& found, bool json) {
  const std::vector<std::string> missing = request.check_outputs();
  const double flops =
      measure_flops(device_of(request.device), threads_per_rank(found, request.run.parallel.ranks()));
  const DryRun dry{request, found, as_usage([&] { return forecast(request, flops); }), missing,
                   newest_checkpoint(request.run.checkpoint)};
  return json ? to_json(dry) : to_text(dry);
}

}  // namespace penstock::tool
