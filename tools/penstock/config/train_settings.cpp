// The options of `penstock train`.
#include "config/train_settings.h"

#include "base/option_ranges.h"
#include "base/text.h"
#include "checkpoint/commit/directory_lock.h"
#include "comm/rendezvous/environment.h"
#include "train/preflight/output_paths.h"
#include "train/preflight/token_data.h"
#include "train/preflight/training_data.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/error.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/plan/schedule_choice.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>

namespace penstock::tool {
namespace {

constexpr std::array kDocumentOptions{"--document-separator", "--no-boundary-targets"};

// On the command line, 0 and the empty text mean that a value is not set.
template <class T>
std::optional<T> unless_zero(T value, const char* option, const char* zero) {
  if (!(value >= T{}))  // rejects NaN too
    throw UsageError(std::string(option) + " must be at least 0", {}, std::string("use 0 for ") + zero);
  return value == T{} ? std::nullopt : std::optional<T>(value);
}
std::optional<std::filesystem::path> unless_empty(const std::string& path) {
  return path.empty() ? std::nullopt : std::optional<std::filesystem::path>(path);
}

}  // namespace

void TrainSettings::declare(Settings& s) {
  using namespace train;
  s.positional("MODEL.pt2", "model", model, "an archive written by torch.export.save [the built-in GPT]");
  s.add("--data", data,
        "a .safetensors file with one tensor per model input, and target; several files, directories or "
        "patterns, separated by commas; for the GPT, a text file; for either, .bin files of tokens");
  s.choice<TokenDtype>("--token-dtype", token_dtype, named({TokenDtype::Uint16, TokenDtype::Uint32}),
                       "type of the tokens in .bin files");
  s.add("--tokenizer", tokenizer,
        "how text becomes tokens: characters (only the GPT), bytes, or a tokenizer.json of Hugging Face");
  s.add("--document-separator", document_separator,
        "the token that ends a document, as a number or as text of the tokenizer: attention does not cross "
        "it, and positions restart after it");
  s.add("--no-boundary-targets", no_boundary_targets,
        "with --document-separator: no loss for the first token of a document");
  s.add("--vocab", vocabulary, "tokens in the vocabulary of the GPT [that of the data]");
  s.add("--ranks", rank_request.ranks,
        "number of ranks (processes); without --pp, --tp and --dp it sets --pp [2]");
  s.add("--pp", rank_request.pp, "pipeline-parallel ranks");
  s.add("--tp", rank_request.tp, "tensor-parallel ranks [1]");
  s.add("--tp-plan", tensor_plan,
        "tensor-parallel style per module: blocks.*.up=colwise,blocks.*.down=rowwise (or sequence) [derived "
        "from the graph]");
  s.add("--dp", rank_request.dp, "data-parallel ranks: replicas that divide the batch [1]");
  s.choice<Sharding>("--sharding", sharding_,
                     named({Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Full}),
                     "what the replicas shard: optimizer states, also gradients, or also parameters (full)");
  s.add("--schedule", schedule,
        "a schedule that penstock schedule --list names, auto (generated for measured costs), or a schedule "
        "file (FILE.csv)");
  s.suggest("--schedule", plan::schedule_choice_names());
  s.add("--stages-per-rank", stages_per_rank, "stages per rank [2 for V-shaped schedules, else 1]");
  s.add("--stages", stages, "total number of stages, instead of --stages-per-rank");
  s.add("--microbatches", microbatches, "microbatches per step and replica [4]");
  s.add("--split", split,
        "split points: layers.2=beginning,layers.4=end; for the GPT, blocks.2=beginning [balanced]");
  s.add("--cuts", cuts, "split positions, as operator indices from 0, instead of --split: 12,40");
  s.choice<pipe::BalanceBy>(
      "--balance", balance, named({pipe::BalanceBy::Parameters, pipe::BalanceBy::MeasuredTime}),
      "balance stages by parameter bytes or by measured time (ignored with --split and --cuts)");
  s.add("--backend", backend, kBackendHelp);
  s.choice<DeviceChoice>("--device", device, kDeviceChoices, kDeviceHelp);
  s.add("--steps", steps,
        "total number of steps, including those before a resume [500; exported model: 100]");
  s.add("--epochs", epochs, "passes over the training data, instead of --steps; 0: use --steps");
  s.add("--batch", batch, "examples per step, over all replicas [16]");
  s.add("--seq", sequence, "characters or tokens per example [64; exported model: the length of its input]");
  s.add("--accumulate", run.accumulate, "split each batch into this many passes and accumulate gradients");
  recipe.declare(s, run);
  adapters.declare(s);
  s.add("--grad-clip", grad_clip, "maximum global gradient norm; 0: no clipping");
  s.add("--loss-output", loss_output,
        "the model output used for the loss [logits, else the first]; if the data has no target, the output "
        "that is the loss [loss, if the model takes labels of tokens]");
  s.add("--labels", labels,
        "the input with the labels from which the model computes its own loss [labels, if there is one]");
  s.choice<LossMean>("--loss-mean", loss_mean,
                     named({LossMean::Auto, LossMean::Rows, LossMean::Labels, LossMean::NextLabels}),
                     "what the model's own loss is a mean over: rows, the labels other than -100, or these "
                     "labels without the first one of each row; auto: from the graph");
  s.choice<Precision>("--precision", run.precision,
                      named({Precision::Float32, Precision::Bfloat16, Precision::Float16}),
                      "autocast to bfloat16, or to float16 with a dynamic loss scale");
  s.choice<ParamDtype>("--param-dtype", param_dtype, param_dtype_choices(), kParamDtypeHelp);
  s.flag_or_list("--recompute", run.parallel.recompute, run.parallel.recompute_modules,
                 "keep only the stage inputs and recompute activations in the backward pass; "
                 "--recompute=PATTERNS recomputes only those of modules: blocks.*, layers.*.mlp");
  s.add("--seed", seed_, "seed for initialization, data order and random numbers");
  s.add("--no-shuffle", no_shuffle,
        "read examples in file order and wrap around at the end, instead of a random order per epoch");
  s.add("--prefetch", run.prefetch,
        "passes whose data is loaded ahead, on a thread of its own; 0: load it when it is needed");
  s.add("--drop-last", drop_last, "leave out the last examples of an epoch if they do not fill a batch");
  s.add("--validation", validation, "fraction of the data held out for validation");
  s.add("--validation-data", validation_data, "files for validation, like --data, instead of a fraction");
  s.add("--eval-every", eval_every, "steps between validations; 0: none");
  s.add("--eval-batches", eval_batches, "batches per validation; 0: all rows [4; exported model: 0]");
  s.choice<NanPolicy>("--on-nan", run.on_nan, named({NanPolicy::Stop, NanPolicy::Skip, NanPolicy::Ignore}),
                      "what to do when a loss or gradient is not finite");
  s.add("--checkpoint", checkpoint, "a directory for checkpoints");
  s.add("--checkpoint-every", checkpoint_every, "steps between checkpoints; 0: only at the end");
  s.add("--checkpoint-keep", checkpoint_keep_, "number of checkpoints to keep");
  s.choice<StoragePolicy>("--on-storage-error", run.checkpoint.on_error,
                          named({StoragePolicy::Stop, StoragePolicy::Warn}),
                          "what to do when a checkpoint cannot be written");
  s.add("--resume", run.checkpoint.resume, "continue from the newest complete checkpoint");
  s.add("--resume-partly", run.checkpoint.allow_partial,
        "with --resume: load the matching tensors of a checkpoint and report the others");
  weights.declare(s);
  s.add("--max-restarts", max_restarts, "maximum number of restarts from the last checkpoint after failures");
  s.add("--timeout", timeout,
        "seconds to wait for a rank that is alive but makes no progress [PENSTOCK_TIMEOUT if set, else 300]");
  s.add("--log-json", log_json, "a file with one JSON object per logged step");
  s.add("--log-csv", log_csv, "a CSV file with one row per logged step");
  s.add("--tensorboard", tensorboard,
        "a directory for TensorBoard event files: loss, rate, norm, throughput, memory, validation");
  s.add("--dashboard", dashboard,
        "serve a live page with loss, throughput, memory and the last timeline at a local address");
  s.add("--log-every", run.log_every,
        "steps between logged steps; only these read losses and norms from the device");
  s.add("--failure-log", failure_log,
        "a file for the details of failed attempts [failure.log in --output or --checkpoint]");
  s.add("--timeline", timeline, "write an HTML page that compares a measured step with its prediction");
  s.add("--trace", trace, "write a trace of a measured step, for Chrome and Perfetto");
  s.add("--profile", profile, "write the measured costs as TOML, for penstock plan --costs");
  s.add("--output", output, "default directory for checkpoints, timeline and logs");
  s.add("--layers", gpt.layers, "layers of the GPT");
  s.add("--width", gpt.width, "width of the GPT");
  s.add("--heads", gpt.heads, "attention heads of the GPT");
  s.add("--dropout", gpt.dropout, "dropout of the GPT");
  s.add("--untied", untied_, "do not tie the head of the GPT to its token embedding");
  s.choice<models::FeedForwardKind>(
      "--feed-forward", gpt.feed_forward,
      {{"gelu", models::FeedForwardKind::Gelu}, {"swiglu", models::FeedForwardKind::SwiGlu}},
      "feed-forward layer of the GPT");
  s.choice<models::PositionKind>(
      "--positions", gpt.positions,
      {{"rotary", models::PositionKind::Rotary}, {"learned", models::PositionKind::Learned}},
      "position encoding of the GPT");
  s.add("--dry-run", dry_run,
        "print what would run where, with predicted memory and time, and exit: starts no ranks, writes no "
        "files");
  s.add(Verbosity::kQuietNames, verbosity.quiet, Verbosity::kQuietHelp);
  s.add(Verbosity::kVerboseNames, verbosity.verbose, Verbosity::kVerboseHelp);
  s.add("--sample", sample, "characters of text that the GPT generates at the end; 0: none");
  s.add("--prompt", prompt, "prompt for the generated text");
}

void TrainSettings::resolve() {
  train::ParallelOptions& parallel = run.parallel;
  const RankCounts counts = rank_request.counts(default_ranks);
  parallel.pp = counts.pp, parallel.tp = counts.tp, parallel.dp = counts.dp;
  rank_request.ranks = counts.all();
  rank_request.pp = counts.pp, rank_request.tp = counts.tp, rank_request.dp = counts.dp;
  resolve_stages();
  parallel.microbatches = count_option(microbatches.value_or(4), "--microbatches");
  microbatches = parallel.microbatches;
  if (!built_in() && data.empty())
    throw UsageError("an exported model needs --data", {},
                     "pass --data FILE.safetensors, with tensors named after the model's inputs, and target");
  if (built_in() && data.empty()) data = fetched_text();
  resolve_epochs();
  batch = run.batch = batch.value_or(16);
  eval_batches = eval_batches.value_or(built_in() ? 4 : 0);
  run.eval_batches = unless_zero(*eval_batches, "--eval-batches", "all rows");
  run.eval_every = unless_zero(eval_every, "--eval-every", "no validation");
  run.grad_clip = unless_zero(grad_clip, "--grad-clip", "no clipping");
  if (built_in()) sequence = gpt.context = sequence.value_or(64);
  if (sequence) check_at_least(*sequence, 1, "--seq");
  if (vocabulary) check_at_least(*vocabulary, 1, "--vocab");
  if (no_boundary_targets && document_separator.empty())
    throw UsageError("--no-boundary-targets needs --document-separator", {},
                     "give the token that ends a document");
  run.seed = static_cast<std::uint64_t>(seed_);
  run.checkpoint.keep = count_option(checkpoint_keep_, "--checkpoint-keep");
  gpt.tied = !untied_;
  resolve_outputs();
  check_at_least(run.steps, 1, "--steps");
  check_at_least(run.batch, 1, "--batch");
  check_at_least(run.accumulate, 1, "--accumulate");
  check_at_least(run.log_every, 1, "--log-every");
  check_at_least(run.prefetch, 0, "--prefetch");
  run.parameter_dtype = parameter_dtype(param_dtype);
  recipe.resolve(run, built_in());
  weights.resolve(run);
  adapters.resolve();
  if (max_restarts < 0) throw UsageError("--max-restarts must be at least 0", {}, "use 0 for no restarts");
  if (!timeout) {
    const auto unset = comm::operation_timeout(std::nullopt, comm::look_in_process);
    timeout = std::chrono::duration<double>(unset).count();
  }
  if (!(*timeout > 0))
    throw UsageError("--timeout must be greater than 0", {}, "give a number of seconds, such as 300");
  if (!(validation >= 0 && validation < 1))
    throw UsageError("--validation must be at least 0 and less than 1", {},
                     "give a fraction of the data, such as 0.1");
  if (!validation_data.empty() && !run.eval_every)
    throw UsageError("--validation-data needs validations", {},
                     "give the steps between them: --eval-every 100");
  if (run.eval_every && validation == 0 && validation_data.empty())
    throw UsageError("--eval-every needs validation data, but --validation is 0", {},
                     "hold out a fraction of the data, such as --validation 0.1");
  resolve_sharding();
  read_split_points(split);
  read_split_positions(cuts);
  if (!split.empty() && !cuts.empty())
    throw UsageError("--split and --cuts are mutually exclusive", {}, "give only one of them");
  const ResolvedDevice resolved = resolve_device(device, local_ranks.value_or(counts.all()));
  device = resolved.choice;
  device_reason = resolved.reason;
  backend = resolve_backend(backend, device);
  if (epochs == 0) resolve_steps(run.steps);
}

void TrainSettings::resolve_epochs() {
  if (epochs < 0) throw UsageError("--epochs must be at least 0", {}, "use 0 to give --steps instead");
  if (epochs > 0 && steps) throw UsageError("--epochs and --steps are both given", {}, "give one of the two");
  if (epochs == 0) run.steps = steps.value_or(built_in() ? 500 : 100);
}

void TrainSettings::resolve_steps(std::int64_t count) {
  epochs = 0;
  steps = run.steps = count;
  recipe.resolve_learning_rate(run, built_in());
  train::check(run);
}

void TrainSettings::resolve_outputs() {
  if (!output.empty()) {
    if (checkpoint.empty()) checkpoint = output + "/checkpoint";
    if (timeline.empty()) timeline = output + "/timeline.html";
    if (log_json.empty()) log_json = output + "/log.jsonl";
  }
  run.checkpoint.directory = unless_empty(checkpoint);
  run.checkpoint.every = unless_zero(checkpoint_every, "--checkpoint-every", "a checkpoint only at the end");
  run.log_json = unless_empty(log_json);
  run.live_timeline = dashboard;
  run.log_csv = unless_empty(log_csv);
  run.tensorboard = unless_empty(tensorboard);
  run.timeline = unless_empty(timeline);
  run.trace = unless_empty(trace);
  run.profile = unless_empty(profile);
  if (run.checkpoint.allow_partial && !run.checkpoint.resume)
    throw UsageError("--resume-partly needs --resume", {}, "give both");
  failure_log_given = !failure_log.empty();
  if (!failure_log_given && !(output + checkpoint).empty())
    failure_log = (output.empty() ? checkpoint : output) + "/failure.log";
  if (!checkpoint.empty()) return;
  if (run.checkpoint.resume)
    throw UsageError("--resume needs a checkpoint directory", {}, "give it with --checkpoint DIR");
  if (checkpoint_every > 0)
    throw UsageError("--checkpoint-every needs a checkpoint directory", {}, "give it with --checkpoint DIR");
}

std::vector<std::string> TrainSettings::prepare_outputs() const {
  return visit_outputs(make_output_directory, [](const std::string& directory) {
    checkpoint::check_checkpoint_directory(directory);
  });
}

std::vector<std::string> TrainSettings::check_outputs() const {
  const auto check = [](const std::string& path, const std::string& option) {
    return check_output_directory(path, option) ? path : "";
  };
  return visit_outputs(check,
                       [](const std::string& directory) { checkpoint::DirectoryLock(directory).check(); });
}

std::vector<std::string> TrainSettings::visit_outputs(
    const std::function<std::string(const std::string& path, const std::string& option)>& visit,
    const std::function<void(const std::string& directory)>& lock) const {
  std::vector<std::string> lines;
  const auto make = [&](const std::string& path, const char* option) {
    const std::string text = path.empty() ? "" : visit(path, option);
    if (!text.empty()) lines.push_back(text);
  };
  make(output, "--output");
  make(tensorboard, "--tensorboard");
  // With --resume and without --init the directory must already exist. If it does not, the ranks report it.
  const bool creates_it = !run.checkpoint.resume || run.init;
  const bool writes = !checkpoint.empty() && (creates_it || std::filesystem::exists(checkpoint));
  const bool stops = run.checkpoint.on_error == train::StoragePolicy::Stop;
  try {
    if (writes) make(checkpoint, "--checkpoint");
    if (writes) lock(checkpoint);
  } catch (const UsageError&) {
    // With --on-storage-error warn, the ranks report the error and continue without checkpoints.
    if (stops) throw;
  } catch (const checkpoint::StorageError& error) {
    if (stops) throw UsageError("--checkpoint: " + error.message(), error.context(), error.hint());
  }
  for (const auto& [path, option] : {std::pair(&log_json, "--log-json"),
                                     {&log_csv, "--log-csv"},
                                     {&timeline, "--timeline"},
                                     {&trace, "--trace"},
                                     {&profile, "--profile"}}) {
    // A directory that a dry run would create does not exist yet, nor do its parents.
    const std::string folder = std::filesystem::path(*path).parent_path().string();
    const auto creates = [&](const std::string& line) {
      return line == folder || line.starts_with(folder + "/");
    };
    if (std::none_of(lines.begin(), lines.end(), creates)) require_output_directory(*path, option);
  }
  return lines;
}

bool TrainSettings::reads_tokens() const {
  return are_token_files(data) || (has_tokenizer() && !are_tensor_files(data));
}

std::vector<std::string> TrainSettings::idle() const {
  std::vector<std::string> names =
      built_in()
          ? std::vector<std::string>{"--cuts",      "--tp-plan", "--balance",  "--loss-output",
                                     "--loss-mean", "--labels",  "--class-dim"}
          : std::vector<std::string>{"--layers", "--width",        "--heads",     "--dropout", "--vocab",
                                     "--untied", "--feed-forward", "--positions", "--sample",  "--prompt"};
  for (const auto& others : {idle_for_data(), idle_for_loss()})
    names.insert(names.end(), others.begin(), others.end());
  return names;
}

std::vector<std::string> TrainSettings::idle_for_loss() const {
  if (!computes_loss()) return {"--loss-mean", "--labels"};
  return {"--loss", "--label-smoothing", "--class-weights", "--class-dim"};
}

bool TrainSettings::computes_loss() const {
  if (built_in()) return false;
  if (reads_tokens()) return !labels.empty() || takes_labels(model);
  return !loss_output.empty() && lacks_target(data);
}

std::vector<std::string> TrainSettings::idle_for_data() const {
  if (reads_tokens() && !are_token_files(data)) return {"--token-dtype"};
  if (reads_tokens() && !built_in()) return {"--tokenizer"};
  if (reads_tokens() && !has_tokenizer()) return {"--sample", "--prompt"};
  if (reads_tokens()) return {};
  std::vector<std::string> names{"--token-dtype"};
  if (built_in()) return names;
  names.insert(names.end(), kDocumentOptions.begin(), kDocumentOptions.end());
  names.insert(names.end(), {"--seq", "--tokenizer"});
  return names;
}

void TrainSettings::refuse_idle(const Settings& settings) const {
  // `--sample 0` asks for nothing.
  const auto is_given = [&](const std::string& name) {
    return settings.given(name) && (name != "--sample" || sample != 0);
  };
  for (const std::string& name : idle_for_data()) {
    if (!is_given(name)) continue;
    if (are_token_files(data))
      throw UsageError(
          name + " needs text, but the data consists of tokens", {},
          built_in() ? "leave it out, or name the tokenizer with --tokenizer FILE.json" : "leave it out");
    if (std::find(kDocumentOptions.begin(), kDocumentOptions.end(), name) != kDocumentOptions.end())
      throw UsageError(name + " is for tokens, but the data has none", {},
                       "give files of tokens with --data FILE.bin, or a text with --tokenizer bytes or a "
                       "file tokenizer.json");
    if (name == "--tokenizer")
      throw UsageError("--tokenizer is for text, but --data names tensors", {},
                       "leave it out, or give a text with --data FILE.txt");
    throw UsageError(name + " is for token files, but --data names none", {},
                     "give files of tokens with --data FILE.bin, or leave the option out");
  }
  for (const std::string& name : idle_for_loss()) {
    if (!is_given(name) || built_in()) continue;
    if (name == "--loss-mean" || name == "--labels")
      throw UsageError(name + " does not apply: the model does not compute its own loss", {},
                       "leave it out, or name the output that is the loss with --loss-output, and give data "
                       "without a tensor 'target'");
    if (reads_tokens())
      throw UsageError(name + " does not apply: the model takes labels and computes its own loss", {},
                       "leave it out, or export the model without labels");
    throw UsageError(name + " does not apply: the data has no target, so the model computes its own loss", {},
                     "leave it out, or add a tensor 'target' to the data");
  }
  for (const std::string& name : idle()) {
    if (!is_given(name)) continue;
    throw built_in() ? UsageError(name + " is for an exported model, but none is given", {},
                                  "give the model first: penstock train MODEL.pt2 --data …")
                     : UsageError(name + " is for the built-in GPT, but the exported model " +
                                      quote(model, 200) + " is given",
                                  {}, "leave it out: an exported model has fixed sizes");
  }
}

train::ArchiveOptions TrainSettings::archive() const {
  return {.file = model,
          .split = read_split_points(split),
          .positions = read_split_positions(cuts),
          .balance = balance,
          .loss = recipe.loss,
          .loss_options = recipe.loss_options(),
          .loss_output = loss_output.empty() ? std::nullopt : std::optional(loss_output),
          .tensor_plan = run.parallel.tp > 1 ? read_tensor_plan(tensor_plan) : parallel::ParallelPlan{},
          .computes_loss = computes_loss(),
          .loss_mean = loss_mean,
          .labels = labels.empty() ? std::nullopt : std::optional(labels),
          .lora = lora(),
          .dtype = converted_dtype(param_dtype)};
}

std::string fetched_text() {
  const std::filesystem::path bin = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path text = bin.parent_path().parent_path() / "data" / "shakespeare.txt";
  return std::filesystem::exists(text) ? text.string() : "";
}

}  // namespace penstock::tool
