// Runs one rank: loads model and data, trains, and prints a summary on rank 0.
#include "train/rank/train_rank.h"

#include "base/json.h"
#include "base/text.h"
#include "commands/trained_gpt.h"
#include "train/display/train_display.h"
#include "train/lora/gpt_adapters.h"
#include "train/preflight/document_inputs.h"
#include "train/preflight/token_data.h"
#include "train/preflight/training_data.h"
#include "train/rank/training_hook.h"

#include <penstock/base/error.h>
#include <penstock/models/gpt.h>
#include <penstock/train/trainer.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>

namespace penstock::tool {
namespace {

// Generates text with the full model, built from the gathered parameters.
std::string sample_of(const TrainSettings& request, const GptData& data, const train::RunResult& result) {
  models::Gpt model(request.gpt);
  if (const auto lora = request.lora()) add_adapters(*model, *lora);
  {
    const at::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) item.value().copy_(result.parameters.at(item.key()));
  }
  std::vector<std::int64_t> prompt = data.encode(request.prompt);
  if (prompt.empty()) prompt = {0};
  const models::SampleOptions options{.tokens = request.sample,
                                      .seed = request.run.seed,
                                      .separator = separator_token(request.document_separator, data.encode)};
  return data.decode(models::sample(*model, prompt, options));
}

std::string stop_text(const TrainSettings& request, const train::RunResult& result) {
  const std::string where = str_cat("stopped by SIG", sigabbrev_np(result.stopped), " after step ",
                                    result.last_step, " of ", request.run.steps);
  if (!result.checkpoint)
    return where + "; no checkpoint was written, because there is no --checkpoint DIR\n";
  return where + "; use --resume to continue from the checkpoint\n";
}

std::string summary_of(const TrainSettings& request, const train::RunResult& result) {
  std::string text;
  if (result.stopped != 0) text = stop_text(request, result);
  if (!result.losses.empty()) {
    const auto last = static_cast<long long>(result.last_step);
    const auto first = static_cast<long long>(result.first_step);  // after a resume, not 1
    text += "loss ";
    if (first < last) text += formatted("%.4f at step %lld, ", result.losses.front(), first);
    text += formatted("%.4f at step %lld", result.losses.back(), last);
    if (result.validation_loss) text += formatted("; validation loss %.4f", *result.validation_loss);
    text += "\n";
  }
  if (!request.timeline.empty()) text += "timeline: " + request.timeline + "\n";
  if (!request.trace.empty()) text += "trace: " + request.trace + "\n";
  if (!request.profile.empty()) text += "costs: " + request.profile + " (penstock plan --costs)\n";
  if (!request.log_json.empty()) text += "log: " + request.log_json + "\n";
  if (!request.log_csv.empty()) text += "log: " + request.log_csv + "\n";
  if (!request.tensorboard.empty()) text += "TensorBoard: tensorboard --logdir " + request.tensorboard + "\n";
  if (result.checkpoint) text += "checkpoint: " + result.checkpoint->string() + "\n";
  return text;
}

std::string summary_json(const TrainSettings& request, const train::RunResult& result) {
  JsonWriter json;
  json.begin_object().field("steps", request.run.steps);
  if (result.stopped != 0) json.field("stopped_at", result.last_step).field("signal", result.stopped);
  if (!result.losses.empty())
    json.field("first_loss", result.losses.front()).field("last_loss", result.losses.back());
  if (result.validation_loss) json.field("validation_loss", *result.validation_loss);
  if (result.plan) json.field("plan", *result.plan);
  json.field("timeline", request.timeline)
      .field("checkpoint", result.checkpoint ? result.checkpoint->string() : "")
      .field("profile", request.profile);
  return json.end_object().text();
}

void report_notes(const comm::World& world, train::Observer& observer, const TrainSettings& request,
                  const train::DataSource& data) {
  if (world.rank().value != 0) return;
  for (const std::string& note : request.notes) observer.on_message(note);
  if (const auto note = repeated_rows_note(request, data)) observer.on_message(*note);
}

train::RunResult train_archive(const comm::World& world, const TrainSettings& request, DisplayOptions display,
                               train::RunExtras extras) {
  const train::ArchiveModel archive = train::archive_model(request.archive());
  const auto data = archive_data(request, archive);
  if (display.quiet && request.run.parallel.tp > 1 && world.rank().value == 0) {
    const auto split = archive.model->split_at(archive.model->split(static_cast<int>(*request.stages)));
    for (std::string& message : split->sharding_messages(request.run.parallel.tp))
      display.unimportant.insert(std::move(message));
  }
  const auto observer = make_display(display);
  extras.observer = observer.get();
  report_notes(world, *observer, request, *data);
  return train::run(world, *archive.model, *data, request.run, extras);
}

}  // namespace

comm::World join_world(const TrainSettings& request) {
  report_start();
  comm::InitOptions how{.backend = comm::parse_backend(request.backend), .device = device_of(request.device)};
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(request.timeout.value() * 1000));
  how.timeout = timeout;
  // Treat a rank that never joins like one that makes no progress.
  how.join_timeout = std::min(how.join_timeout, timeout);
  return init(how);
}

int run_training_rank(const TrainSettings& request) {
  DisplayOptions display = display_from_environment();
  display.dashboard = request.dashboard;
  // The launcher knows the signal and reports it with its exit code.
  TrainSettings settings = request;
  adopt_order(settings);  // what the command line cannot express
  train_in(join_world(settings), settings, display, StopSignals::Which::Interrupt);
  return 0;
}

int train_in(const comm::World& world, const TrainSettings& request, DisplayOptions display,
             StopSignals::Which signals) {
  const StopSignals caught(signals);
  TrainingHook hook(world.rank());
  display.config = request.resolved_config;
  if (!request.given.empty()) display.given = request.given;
  train::RunExtras extras{
      .hook = &hook, .stop = StopSignals::received, .notes = {{"config", request.resolved_config}}};
  extras.notes.emplace(kHeldOutNote, held_out_note(request.holds_out_rows()));
  const bool first = world.rank().value == 0, json = display.mode == DisplayMode::Json;
  train::RunResult result;
  std::string sample;
  if (request.built_in()) {
    const GptData data = gpt_data(request);
    TrainSettings sized = request;
    sized.gpt.vocabulary = data.vocabulary;
    if (first && !json && !display.quiet) print("data: " + data.origin + "\n");
    const auto model = train::gpt_model(sized.gpt, request.run.seed, request.lora(),
                                        request.recipe.loss_options(), read_split_points(request.split));
    if (data.letters) extras.notes.emplace(kVocabularyNote, vocabulary_note(*data.letters));
    const bool samples = request.sample > 0 && data.decode && !json && !display.quiet;
    extras.gather_parameters = samples;
    const auto observer = make_display(display);
    extras.observer = observer.get();
    report_notes(world, *observer, request, *data.source);
    result = train::run(world, *model, *data.source, request.run, extras);
    if (first && samples && result.stopped == 0) sample = sample_of(sized, data, result);
  } else {
    result = train_archive(world, request, display, extras);
  }
  if (first && json) print(summary_json(request, result) + "\n");
  if (!first || json) return result.stopped;
  if (!sample.empty()) print("\nsample of generated text:\n" + sample + "\n\n");
  print(summary_of(request, result));
  return result.stopped;
}

}  // namespace penstock::tool
