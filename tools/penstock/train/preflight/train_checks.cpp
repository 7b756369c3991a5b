// Checks a training run before its ranks start.
#include "train/preflight/train_checks.h"

#include "base/text.h"
#include "cli/paths.h"
#include "train/preflight/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_module.h>
#include <penstock/models/gpt.h>
#include <penstock/train/trainer.h>
#include <penstock/value/microbatch.h>

#include <algorithm>
#include <filesystem>

namespace penstock::tool {
namespace {

void check_outputs(const TrainSettings& request) {
  const std::vector<std::string> inputs{request.model, request.data, request.config};
  check_output_file("--log-json", request.log_json, inputs);
  check_output_file("--log-csv", request.log_csv, inputs);
  check_output_file("--timeline", request.timeline, inputs);
  check_output_file("--trace", request.trace, inputs);
  check_output_file("--profile", request.profile, inputs);
  if (request.failure_log_given) check_output_file("--failure-log", request.failure_log, inputs);
}

std::unique_ptr<train::DataSource> data_of(const TrainSettings& request, const train::ArchiveModel& model,
                                           std::map<std::string, at::Tensor> tensors) {
  const bool validates = request.run.eval_every.has_value();
  return train::tensor_data(std::move(tensors),
                            {model.positional, model.keywords, validates ? request.validation : 0.0});
}

void check_validation(const TrainSettings& request, const train::DataSource& data) {
  if (request.run.eval_every && data.validation_rows() == 0)
    throw UsageError("the data is too small to hold out a part for validation", {},
                     "use more data, a larger --validation, or --eval-every 0");
}

void check_data(const TrainSettings& request, const train::ArchiveModel& archive) {
  const graph::Graph& graph = archive.archive->graph();
  const auto tensors = read_training_data(archive, request.recipe.loss, request.data);
  const auto data = data_of(request, archive, tensors);
  check_validation(request, *data);
  std::vector<c10::IValue> all;
  for (const graph::GraphInput& input : graph.inputs)
    all.emplace_back(tensors.at(graph.value(input.value).name));
  check_example_shapes(graph, all, request.data);
  const std::vector<std::int64_t> rows = microbatch_rows(request.run);
  std::vector<c10::IValue> example;
  for (const std::int64_t count : {rows.back(), rows.front()}) {
    const train::Batch batch = data->training(1, request.run.batch, {0, count});
    example = flatten_inputs(graph, batch.args, batch.kwargs);
    check_inputs(graph, example);
    const auto sized = count == 1 ? sized_graph(graph, example) : std::nullopt;
    if (sized) check_batch_norms(*sized);
  }
  check_tokens(graph, all);
  const std::vector<std::string> paths = graph.output_paths();
  const auto leaf =
      static_cast<std::size_t>(std::find(paths.begin(), paths.end(), archive.loss_output) - paths.begin());
  if (const auto output = output_sizes(graph, example)[leaf])
    check_target(tensors.at("target"), rows.front(), *output, request.recipe.loss);
}

void check_archive(TrainSettings& request) {
  check_input_file(request.data, ".safetensors");
  const train::ArchiveModel archive = open_model(request.archive());
  request.loss_output = archive.loss_output;
  train::check_before_start(*archive.model, request.run);
  check_data(request, archive);
}

void check_gpt(const TrainSettings& request) {
  const std::string extension = std::filesystem::path(request.data).extension();
  if (extension == ".safetensors" || extension == ".pt2")
    throw UsageError(
        "the built-in GPT is trained on text, but " + quote(request.data, 200) + " is not a text file", {},
        "give the model first: penstock train MODEL.pt2 --data FILE.safetensors");
  if (!request.data.empty()) check_input_file(request.data, ".txt");
  const TrainingText text = training_text(request.data);
  if (text.content.empty()) throw UsageError(quote(request.data, 200) + " is empty", {}, "give a text file");
  const train::Vocabulary vocabulary(text.content);
  models::GptOptions options = request.gpt;
  options.vocabulary = vocabulary.size();
  const auto data =
      train::text_data(text.content, vocabulary, {options.context, request.validation, request.run.seed});
  check_validation(request, *data);
  const models::Gpt sizes(
      options, models::GptPart{});  // only checks the options: it has no blocks and takes no memory
  const auto model = train::gpt_model(options, request.run.seed);
  train::check_before_start(*model, request.run);
}

}  // namespace

void check_training(TrainSettings& request) {
  as_usage([&] {
    check_outputs(request);
    request.built_in() ? check_gpt(request) : check_archive(request);
  });
}

std::vector<std::int64_t> microbatch_rows(const train::RunOptions& run) {
  return value::chunk_sizes(run.batch / run.parallel.dp / run.accumulate, run.parallel.microbatches);
}

TrainingText training_text(const std::string& path) {
  if (!path.empty())
    return {read_input(path), path == fetched_text() ? "Shakespeare's plays, " + path : path};
  constexpr std::size_t bytes = 400'000;
  return {train::generated_text(bytes), "generated sentences (no text found; use --data FILE.txt)"};
}

std::unique_ptr<train::DataSource> archive_data(const TrainSettings& request,
                                                const train::ArchiveModel& model) {
  return data_of(request, model, read_training_data(model, request.recipe.loss, request.data));
}

}  // namespace penstock::tool
