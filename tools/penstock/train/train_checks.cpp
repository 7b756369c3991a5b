// Checks a training run before its ranks start.
#include "train/train_checks.h"

#include "base/text.h"
#include "cli/paths.h"
#include "train/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_module.h>
#include <penstock/models/gpt.h>
#include <penstock/train/trainer.h>
#include <penstock/value/microbatch.h>

#include <algorithm>
#include <filesystem>

namespace penstock::tool {
namespace {

void check_outputs(const TrainSettings& asked) {
  const std::vector<std::string> inputs{asked.model, asked.data, asked.config};
  check_output_file("--log-json", asked.log_json, inputs);
  check_output_file("--timeline", asked.timeline, inputs);
  check_output_file("--trace", asked.trace, inputs);
  check_output_file("--profile", asked.profile, inputs);
  if (asked.failure_log_given) check_output_file("--failure-log", asked.failure_log, inputs);
}

std::unique_ptr<train::DataSource> data_of(const TrainSettings& asked, const train::ArchiveModel& model,
                                           std::map<std::string, at::Tensor> tensors) {
  const bool validates = asked.run.eval_every.has_value();
  return train::tensor_data(std::move(tensors),
                            {model.positional, model.keywords, validates ? asked.validation : 0.0});
}

void check_validation(const TrainSettings& asked, const train::DataSource& data) {
  if (asked.run.eval_every && data.validation_rows() == 0)
    throw UsageError("the data is too small to hold out a part for validation", {},
                     "use more data, a larger --validation, or --eval-every 0");
}

//! Rows per microbatch of a step, the largest first.
std::vector<std::int64_t> microbatch_rows(const train::RunOptions& run) {
  return value::chunk_sizes(run.batch / run.parallel.dp / run.accumulate, run.parallel.microbatches);
}

void check_data(const TrainSettings& asked, const train::ArchiveModel& archive) {
  const graph::Graph& graph = archive.archive->graph();
  const auto tensors = read_training_data(archive, asked.loss, asked.data);
  const auto data = data_of(asked, archive, tensors);
  check_validation(asked, *data);
  const std::vector<std::int64_t> rows = microbatch_rows(asked.run);
  std::vector<c10::IValue> example;
  for (const std::int64_t count : {rows.back(), rows.front()}) {
    const train::Batch batch = data->training(1, asked.run.batch, {0, count});
    example = flatten_inputs(graph, batch.args, batch.kwargs);
    check_inputs(graph, example);
  }
  std::vector<c10::IValue> all;
  for (const graph::GraphInput& input : graph.inputs)
    all.emplace_back(tensors.at(graph.value(input.value).name));
  check_tokens(graph, all);
  const std::vector<std::string> paths = graph.output_paths();
  const auto leaf =
      static_cast<std::size_t>(std::find(paths.begin(), paths.end(), archive.loss_output) - paths.begin());
  if (const auto output = output_sizes(graph, example)[leaf])
    check_target(tensors.at("target"), rows.front(), *output, asked.loss);
}

void check_archive(TrainSettings& asked) {
  check_input_file(asked.data, ".safetensors");
  const train::ArchiveModel archive = open_model(asked.archive());
  asked.loss_output = archive.loss_output;
  train::check_before_start(*archive.model, asked.run);
  check_data(asked, archive);
}

void check_gpt(const TrainSettings& asked) {
  const std::string extension = std::filesystem::path(asked.data).extension();
  if (extension == ".safetensors" || extension == ".pt2")
    throw UsageError(
        "the built-in GPT is trained on text, but " + quote(asked.data, 200) + " is not a text file", {},
        "give the model first: penstock train MODEL.pt2 --data FILE.safetensors");
  if (!asked.data.empty()) check_input_file(asked.data, ".txt");
  const TrainingText text = training_text(asked.data);
  if (text.content.empty()) throw UsageError(quote(asked.data, 200) + " is empty", {}, "give a text file");
  const train::Vocabulary vocabulary(text.content);
  models::GptOptions options = asked.gpt;
  options.vocabulary = vocabulary.size();
  const auto data =
      train::text_data(text.content, vocabulary, {options.context, asked.validation, asked.run.seed});
  check_validation(asked, *data);
  const models::Gpt sizes(
      options, models::GptPart{});  // only checks the options: it has no blocks and takes no memory
  const auto model = train::gpt_model(options, asked.run.seed);
  train::check_before_start(*model, asked.run);
}

}  // namespace

void check_training(TrainSettings& asked) {
  as_usage([&] {
    check_outputs(asked);
    asked.built_in() ? check_gpt(asked) : check_archive(asked);
  });
}

TrainingText training_text(const std::string& path) {
  if (!path.empty())
    return {read_input(path), path == fetched_text() ? "Shakespeare's plays, " + path : path};
  constexpr std::size_t bytes = 400'000;
  return {train::generated_text(bytes), "generated sentences (no text found; use --data FILE.txt)"};
}

std::unique_ptr<train::DataSource> archive_data(const TrainSettings& asked,
                                                const train::ArchiveModel& model) {
  return data_of(asked, model, read_training_data(model, asked.loss, asked.data));
}

}  // namespace penstock::tool
