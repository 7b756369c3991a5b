// Runs one rank: loads model and data, trains, and prints a summary on rank 0.
#include "train/train_rank.h"

#include "base/json.h"
#include "base/text.h"
#include "train/train_checks.h"
#include "train/train_display.h"

#include <penstock/base/error.h>
#include <penstock/models/gpt.h>
#include <penstock/train/trainer.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdio>

namespace penstock::tool {
namespace {

// Generates text with the full model, built from the gathered parameters.
std::string sample_of(const TrainSettings& asked, const train::Vocabulary& vocabulary,
                      const train::RunResult& result) {
  models::Gpt model(asked.gpt);
  {
    const at::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) item.value().copy_(result.parameters.at(item.key()));
  }
  std::vector<std::int64_t> prompt = vocabulary.encode(asked.prompt);
  if (prompt.empty()) prompt = {0};
  const models::SampleOptions options{.tokens = asked.sample, .seed = asked.run.seed};
  return vocabulary.decode(models::sample(*model, prompt, options));
}

std::string summary_of(const TrainSettings& asked, const train::RunResult& result) {
  std::string text;
  if (!result.losses.empty()) {
    char line[120];
    std::snprintf(line, sizeof line, "loss %.4f at the first step of this run, %.4f at the last\n",
                  result.losses.front(), result.losses.back());
    text += line;
  }
  if (!asked.run.timeline.empty()) text += "timeline: " + asked.run.timeline + "\n";
  if (!asked.run.trace.empty()) text += "trace: " + asked.run.trace + "\n";
  if (!asked.run.profile.empty()) text += "costs: " + asked.run.profile + " (penstock plan --costs)\n";
  if (!asked.run.log_json.empty()) text += "log: " + asked.run.log_json + "\n";
  if (!result.checkpoint.empty()) text += "checkpoint: " + result.checkpoint + "\n";
  return text;
}

std::string summary_json(const TrainSettings& asked, const train::RunResult& result) {
  JsonWriter json;
  json.begin_object().field("steps", asked.run.steps);
  if (!result.losses.empty())
    json.field("first_loss", result.losses.front()).field("last_loss", result.losses.back());
  if (!result.plan.empty()) json.field("plan", result.plan);
  json.field("timeline", asked.run.timeline)
      .field("checkpoint", result.checkpoint)
      .field("profile", asked.run.profile);
  return json.end_object().text();
}

train::RunResult train_model(const comm::World& world, const TrainSettings& asked, train::Observer& display) {
  const train::ArchiveModel archive = train::archive_model(asked.archive());
  const auto data = archive_data(asked, archive);
  return train::run(world, *archive.model, *data, asked.run, {.observer = &display});
}

}  // namespace

int be_a_training_rank(const TrainSettings& asked) {
  train::announce_start();
  comm::InitOptions how{.backend = comm::parse_backend(asked.backend)};
  how.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(asked.timeout * 1000));
  how.join_timeout =
      std::min(how.join_timeout, how.timeout);  // a rank that never joins counts as one without progress
  const comm::World world = init(how);
  const DisplayMode form = display_form();
  const auto display = make_display(form);
  const bool first = world.rank().value == 0;
  train::RunResult result;
  std::string sample;
  if (asked.built_in()) {
    const TrainingText text = training_text(asked.data);
    const train::Vocabulary vocabulary(text.content);
    TrainSettings sized = asked;
    sized.gpt.vocabulary = vocabulary.size();
    if (first && form != DisplayMode::Json) print("data: " + text.origin + "\n");
    const auto data =
        train::text_data(text.content, vocabulary, {asked.gpt.context, asked.validation, asked.run.seed});
    const auto model = train::gpt_model(sized.gpt, asked.run.seed);
    const bool samples = asked.sample > 0 && form != DisplayMode::Json;
    result = train::run(world, *model, *data, asked.run,
                        {.observer = display.get(), .gather_parameters = samples});
    if (first && samples) sample = sample_of(sized, vocabulary, result);
  } else {
    result = train_model(world, asked, *display);
  }
  if (!first) return 0;
  if (form == DisplayMode::Json) {
    print(summary_json(asked, result) + "\n");
    return 0;
  }
  if (!sample.empty()) print("\nsample of generated text:\n" + sample + "\n\n");
  print(summary_of(asked, result));
  return 0;
}

}  // namespace penstock::tool
