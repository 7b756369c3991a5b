// What `penstock train` can be asked for.
#include "train_settings.h"

#include "output_paths.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/schedule/generate.h>

#include <filesystem>
#include <utility>

namespace penstock::tool {

void TrainSettings::declare(Settings& s) {
  using namespace train;
  s.positional("MODEL.pt2", "model", model,
               "an archive of torch.export.save; without it, the built-in GPT is trained");
  s.add("--data", data,
        "a text file for the GPT; for a model a .safetensors of tensors named like its inputs, and target");
  s.add("--ranks", asked.ranks, "processes to start; alone it means --pp [2]");
  s.add("--pp", asked.pp, "pipeline-parallel ranks");
  s.add("--tp", asked.tp, "tensor-parallel ranks [1]");
  s.add("--tp-plan", tensor_plan,
        "how they cut a model: blocks.*.up=colwise,blocks.*.down=rowwise (or sequence) [found in the graph: "
        "layers "
        "that lead, by pointwise operators and attention, to one layer only]");
  s.add("--dp", asked.dp, "replicas that share the batch [1]");
  s.choice<Sharding>("--sharding", run.parallel.sharding,
                     {{"none", Sharding::None}, {"full", Sharding::Full}},
                     "whether replicas keep whole parameters or share them");
  s.add("--schedule", run.parallel.schedule,
        "a name of penstock schedule --list, or auto: made for measured costs");
  s.add("--stages-per-rank", stages_per_rank, "stages of each rank [2 for the V-shaped schedules, else 1]");
  s.add("--stages", stages, "stages of the whole pipeline");
  s.add("--microbatches", microbatches, "parts of a batch in the pipeline [4]");
  s.add("--split", split, "where stages begin or end: layers.2=beginning,layers.4=end");
  s.choice<BalanceKind>(
      "--balance", balance, {{"params", BalanceKind::Parameters}, {"time", BalanceKind::Time}},
      "what stages of a model have alike where --split does not say: bytes, or time as measured");
  s.add("--backend", backend, "gloo or auto");
  s.add("--steps", steps, "updates, those of a resumed run included [500; of a model 100]");
  s.add("--batch", batch, "examples of a step, over all replicas [16]");
  s.add("--seq", sequence, "characters of an example [64]");
  s.add("--accumulate", run.accumulate, "parts of a batch that go through the pipeline one after the other");
  s.choice<OptimizerKind>("--optimizer", run.optimizer.kind,
                          {{"adamw", OptimizerKind::AdamW}, {"sgd", OptimizerKind::Sgd}}, "which optimizer");
  s.add("--lr", rate, "learning rate [0.003; of a model 0.001]");
  s.choice<RateKind>("--lr-schedule", run.rate.kind,
                     {{"constant", RateKind::Constant}, {"cosine", RateKind::Cosine}}, "how it goes on");
  s.add("--warmup", warmup, "steps of a straight rise at the beginning [20; of a model 0]");
  s.add("--weight-decay", run.optimizer.weight_decay, "decay of all parameters");
  s.add("--momentum", run.optimizer.momentum, "of sgd");
  s.add("--grad-clip", run.grad_clip, "the largest norm of all gradients; 0: any");
  s.choice<LossKind>("--loss", loss, {{"cross_entropy", LossKind::CrossEntropy}, {"mse", LossKind::Mse}},
                     "of a model");
  s.add("--loss-output", loss_output, "the model's output that the loss is of [logits, else the first]");
  s.choice<Precision>("--precision", run.precision,
                      {{"float32", Precision::Float32}, {"bf16", Precision::Bfloat16}}, "bf16: autocast");
  s.add("--recompute", run.parallel.recompute, "keep only inputs of stages and compute activations again");
  s.add("--seed", seed_, "of first values, data order and random numbers");
  s.add("--validation", validation, "the share of the data that is kept for validation");
  s.add("--eval-every", run.eval_every, "steps between validations; 0: none");
  s.add("--eval-batches", eval_batches, "batches of a validation at most; 0: all its rows [4; of a model 0]");
  s.choice<NanPolicy>("--on-nan", run.on_nan,
                      {{"stop", NanPolicy::Stop}, {"skip", NanPolicy::Skip}, {"ignore", NanPolicy::Ignore}},
                      "when a loss or gradient is not finite");
  s.add("--checkpoint", run.checkpoint.directory, "a directory for checkpoints");
  s.add("--checkpoint-every", run.checkpoint.every, "steps between them; 0: at the end only");
  s.add("--checkpoint-keep", checkpoint_keep_, "how many are kept");
  s.choice<StoragePolicy>("--on-storage-error", run.checkpoint.on_error,
                          {{"stop", StoragePolicy::Stop}, {"warn", StoragePolicy::Warn}},
                          "when one cannot be written");
  s.add("--resume", run.checkpoint.resume, "go on from the newest complete checkpoint");
  s.add("--resume-partly", run.checkpoint.partly,
        "with --resume: load what fits of a checkpoint whose tensors differ, and say what does not");
  s.add("--max-restarts", max_restarts,
        "start again after a failure, from the last checkpoint, at most so often");
  s.add("--timeout", timeout, "seconds that a rank waits for another that neither fails nor moves");
  s.add("--log-json", run.log_json, "one JSON object a step");
  s.add("--timeline", run.timeline, "an HTML page of a measured step beside its prediction");
  s.add("--trace", run.trace, "the same for Chrome and Perfetto");
  s.add("--profile", run.profile, "measured costs as TOML, for penstock plan --costs");
  s.add("--output", output, "a directory for checkpoints, timeline and log that are not named");
  s.add("--layers", gpt.layers, "of the GPT");
  s.add("--width", gpt.width, "of the GPT");
  s.add("--heads", gpt.heads, "of the GPT");
  s.add("--dropout", gpt.dropout, "of the GPT");
  s.add("--untied", untied_, "give the GPT a head of its own");
  s.choice<models::FeedForwardKind>(
      "--feed-forward", gpt.feed_forward,
      {{"gelu", models::FeedForwardKind::Gelu}, {"swiglu", models::FeedForwardKind::SwiGlu}}, "of the GPT");
  s.choice<models::PositionKind>(
      "--positions", gpt.positions,
      {{"rotary", models::PositionKind::Rotary}, {"learned", models::PositionKind::Learned}}, "of the GPT");
  s.add("--sample", sample, "characters of text at the end; 0: none");
  s.add("--prompt", prompt, "what the text begins with");
}

void TrainSettings::settle() {
  train::ParallelOptions& parallel = run.parallel;
  const RankCounts counts = asked.counts(2);
  parallel.pp = counts.pp, parallel.tp = counts.tp, parallel.dp = counts.dp;
  asked.ranks = counts.all();
  if (stages && stages_per_rank) throw UsageError("--stages and --stages-per-rank exclude each other");
  if (stages && *stages % parallel.pp != 0)
    throw UsageError(std::to_string(*stages) + " stages cannot be dealt evenly to " +
                     std::to_string(parallel.pp) + " ranks");
  if (stages) stages_per_rank = *stages / parallel.pp, stages.reset();
  if (stages_per_rank) parallel.stages_per_rank = small_count(*stages_per_rank, "--stages-per-rank");
  parallel.microbatches = small_count(microbatches.value_or(4), "--microbatches");
  if (to_lower(parallel.schedule) != "auto")
    parallel.schedule = schedule_name(parse_schedule_kind(parallel.schedule));
  if (!built_in() && data.empty())
    throw UsageError("a model needs data", {},
                     "--data FILE.safetensors with tensors named like the model's inputs, and target");
  // Here once, and not by every rank.
  for (const std::string& file : {model, data})
    if (!file.empty() && (!std::filesystem::exists(file) || std::filesystem::is_directory(file)))
      throw UsageError("there is no file " + quote(file, 200));
  run.steps = steps.value_or(built_in() ? 500 : 100);
  run.batch = batch.value_or(16);
  run.eval_batches = eval_batches.value_or(built_in() ? 4 : 0);
  run.rate.rate = rate.value_or(built_in() ? 3e-3 : 1e-3);
  run.rate.warmup = warmup.value_or(built_in() ? 20 : 0);
  run.seed = static_cast<std::uint64_t>(seed_);
  run.checkpoint.keep = small_count(checkpoint_keep_, "--checkpoint-keep");
  gpt.context = sequence.value_or(64);
  gpt.tied = !untied_;
  if (!output.empty()) {
    if (run.checkpoint.directory.empty()) run.checkpoint.directory = output + "/checkpoint";
    if (run.timeline.empty()) run.timeline = output + "/timeline.html";
    if (run.log_json.empty()) run.log_json = output + "/log.jsonl";
    output_directory = std::exchange(output, {});
  }
  if (run.checkpoint.resume && run.checkpoint.directory.empty())
    throw UsageError("--resume needs --checkpoint DIR, the directory of the checkpoints");
  if (run.checkpoint.partly && !run.checkpoint.resume)
    throw UsageError("--resume-partly is for --resume", {}, "give both");
  if (run.checkpoint.every > 0 && run.checkpoint.directory.empty())
    throw UsageError("--checkpoint-every needs --checkpoint DIR");
  if (max_restarts < 0 || !(timeout > 0))
    throw UsageError("--max-restarts must not be negative, and --timeout positive");
  if (!tensor_plan.empty() && (built_in() || parallel.tp == 1))
    throw UsageError("--tp-plan is for exported models with --tp above 1");
  read_tensor_plan(tensor_plan);
  parse_backend(backend);
  train::check(run);
}

std::vector<std::string> TrainSettings::prepare_outputs() const {
  std::vector<std::string> made;
  const auto make = [&](const std::string& path, const char* option) {
    const std::string text = path.empty() ? "" : make_output_directory(path, option);
    if (!text.empty()) made.push_back(text);
  };
  make(output_directory, "--output");
  // What is to be resumed must be there, and the ranks say what is not.
  const std::string& directory = run.checkpoint.directory;
  const bool saves = !directory.empty() && (!run.checkpoint.resume || std::filesystem::exists(directory));
  if (saves) make(directory, "--checkpoint");
  check_output_file(run.log_json, "--log-json");
  check_output_file(run.timeline, "--timeline");
  check_output_file(run.trace, "--trace");
  check_output_file(run.profile, "--profile");
  try {
    if (saves) try_checkpoint_directory(directory);
  } catch (const StorageError& error) {
    throw UsageError("--checkpoint: " + error.message(), error.context(), error.hint());
  }
  return made;
}

std::vector<std::string> TrainSettings::idle() const {
  if (built_in()) return {"--split", "--tp-plan", "--balance", "--loss", "--loss-output"};
  return {"--seq",    "--layers",       "--width",     "--heads",  "--dropout",
          "--untied", "--feed-forward", "--positions", "--sample", "--prompt"};
}

ParallelPlan read_tensor_plan(const std::vector<std::string>& words) {
  ParallelPlan plan;
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    const std::string path = word.substr(0, equals),
                      style = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (!path.empty() && style == "colwise") {
      plan.emplace_back(path, ColwiseParallel());
    } else if (!path.empty() && style == "rowwise") {
      plan.emplace_back(path, RowwiseParallel());
    } else if (!path.empty() && style == "sequence") {
      plan.emplace_back(path, SequenceParallel());
    } else {
      throw UsageError("--tp-plan " + quote(word) + " is no module=colwise, =rowwise or =sequence", {},
                       "for example --tp-plan 'blocks.*.up=colwise,blocks.*.down=rowwise'");
    }
  }
  return plan;
}

SplitPoints read_split_points(const std::vector<std::string>& words) {
  SplitPoints points;
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    const std::string side = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (equals == 0 || (side != "beginning" && side != "end"))
      throw UsageError("--split " + quote(word) + " is no module=beginning or module=end", {},
                       "for example --split layers.2=beginning");
    points[word.substr(0, equals)] = side == "end" ? SplitPoint::End : SplitPoint::Beginning;
  }
  return points;
}

}  // namespace penstock::tool
