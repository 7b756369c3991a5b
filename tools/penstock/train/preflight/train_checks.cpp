// Checks a training run before its ranks start.
#include "train/preflight/train_checks.h"

#include "base/text.h"
#include "cli/paths.h"
#include "train/model/master_weights.h"
#include "train/preflight/model_checks.h"
#include "train/preflight/token_data.h"
#include "train/preflight/training_data.h"
#include "train/rank/resume_changes.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_module.h>
#include <penstock/models/gpt.h>
#include <penstock/train/trainer.h>
#include <penstock/value/microbatch.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>

namespace penstock::tool {
namespace {

namespace fs = std::filesystem;

void check_outputs(const TrainSettings& request) {
  std::vector<std::string> inputs{request.model, request.data, request.config};
  for (const std::string& data : {request.data, request.validation_data}) {
    const std::vector<std::string> files = data.empty() || (request.built_in() && !request.reads_tokens())
                                               ? std::vector<std::string>{}
                                               : data_files(data);
    inputs.insert(inputs.end(), files.begin(), files.end());
  }
  check_output_file("--log-json", request.log_json, inputs);
  check_output_file("--log-csv", request.log_csv, inputs);
  check_output_file("--timeline", request.timeline, inputs);
  check_output_file("--trace", request.trace, inputs);
  check_output_file("--profile", request.profile, inputs);
  if (request.failure_log_given) check_output_file("--failure-log", request.failure_log, inputs);
}

void check_validation(const TrainSettings& request, const train::DataSource& data) {
  if (!request.run.eval_every || data.validation_rows() > 0) return;
  if (!request.holds_out_rows())
    throw UsageError(
        "the run that wrote the checkpoint held out no rows for validation, and a resumed run "
        "trains on the same rows",
        {}, "give other rows with --validation-data, or leave out --eval-every");
  throw UsageError("the data is too small to hold out a part for validation", {},
                   "use more data, a larger --validation, or --eval-every 0");
}

// A loss that the model computes as a mean over rows includes every row of a microbatch, so batches cannot be
// padded.
void check_full_batches(const TrainSettings& request, const train::ArchiveModel& archive,
                        const train::DataSource& data) {
  const std::int64_t batch = request.run.batch;
  if (!archive.model->needs_full_batches()) return;
  const std::int64_t last = data.training_rows(data.steps_of(1, batch).value_or(1), batch);
  if (last < batch)
    throw UsageError(
        str_cat("the last batch of an epoch has ", last, " of ", batch,
                " rows, but the model computes its own loss as a mean over rows, which needs full batches"),
        {}, "use --drop-last, or a --batch that divides the number of examples");
  if (request.run.eval_every && data.validation_rows() < batch)
    throw UsageError(str_cat("there are ", data.validation_rows(), " rows for validation, but a model that ",
                             "computes its own loss needs a full batch of ", batch),
                     {}, "use a smaller --batch, or more validation data");
}

// Checks the examples of `files`, which training or validation reads.
void check_examples(const TrainSettings& request, const train::ArchiveModel& archive,
                    const std::string& files, const std::vector<c10::IValue>& microbatch) {
  const graph::Graph& graph = *archive.graph;
  const TrainingTable table = open_training_table(request, archive, files);
  std::vector<c10::IValue> leaves;
  for (const graph::GraphInput& input : graph.inputs) {
    if (input.constant) {
      leaves.push_back(*input.constant);
      continue;
    }
    const train::TableColumn& column = table.table->columns().at(graph.value(input.value).name);
    leaves.emplace_back(at::empty(column.shape, at::TensorOptions(column.dtype).device(at::kMeta)));
  }
  check_example_shapes(graph, leaves, files);
  const std::vector<std::string> paths = graph.output_paths();
  const auto leaf =
      static_cast<std::size_t>(std::find(paths.begin(), paths.end(), archive.loss_output) - paths.begin());
  if (microbatch.empty()) return;
  const auto output = output_sizes(graph, microbatch)[leaf];
  if (request.reads_tokens() && !archive.computes_loss && output && !output->sizes.empty()) {
    const std::size_t last = output->sizes.size() - 1;
    const auto classes = static_cast<std::size_t>(request.recipe.class_dim.value_or(last));
    check_vocabulary(request, files, output->sizes[std::min(classes, last)].size);
  }
  check_elements(archive, table, request.recipe, microbatch_rows(request.run).front(), output);
}

void check_data(const TrainSettings& request, const train::ArchiveModel& archive,
                const train::DataSource& data) {
  const graph::Graph& graph = *archive.graph;
  check_validation(request, data);
  check_examples(request, archive, request.data, {});
  const std::vector<std::int64_t> rows = microbatch_rows(request.run);
  std::vector<c10::IValue> example;
  for (const std::int64_t count : {rows.back(), rows.front()}) {
    const train::Batch batch = data.training(1, request.run.batch, {0, count});
    example = flatten_inputs(graph, batch.args, batch.kwargs);
    check_inputs(graph, example);
    const auto sized = count == 1 ? sized_graph(graph, example) : std::nullopt;
    if (sized) check_batch_norms(*sized);
  }
  check_examples(request, archive, request.data, example);
  if (!request.validation_data.empty()) check_examples(request, archive, request.validation_data, example);
}

using ConfigText = std::function<std::string()>;

void check_before_start(const train::Model& model, const TrainSettings& request, const ConfigText& config) {
  try {
    train::check_before_start(model, request.run);
  } catch (const UsageError& error) {
    const auto stored = newest_checkpoint(request);
    const std::vector<std::string> changes =
        stored ? changed_settings(stored->note("config").value_or(""), config(), request.given)
               : std::vector<std::string>{};
    if (changes.empty()) throw;
    throw UsageError(error.message() + "\n" + join(changes, "\n"), error.context(), error.hint());
  }
}

void check_archive(TrainSettings& request, const ConfigText& config) {
  data_files(request.data);
  const train::ArchiveModel archive = open_model(request.archive());
  request.loss_output = archive.loss_output;
  if (archive.computes_loss) request.loss_mean = archive.loss_mean;
  request.recipe.check_loss_scale(request.run.precision, train::has_float16_parameters(*archive.model));
  if (archive.labels) request.labels = archive.labels->name;
  adopt_order(request);
  const auto data = archive_data(request, archive);
  resolve_data(request, *data);
  check_before_start(*archive.model, request, config);
  check_data(request, archive, *data);
  check_full_batches(request, archive, *data);
}

void check_gpt(TrainSettings& request, const ConfigText& config) {
  const std::string extension = fs::path(request.data).extension();
  if (extension == ".safetensors" || extension == ".pt2")
    throw UsageError(
        "the built-in GPT is trained on text, but " + quote(request.data, 200) + " is not a text file", {},
        "give the model first: penstock train MODEL.pt2 --data FILE.safetensors");
  if (!request.data.empty() && !request.reads_tokens() && !fs::is_directory(request.data) &&
      request.data.find_first_of(",*?[") == std::string::npos)
    check_input_file(request.data, ".txt");
  adopt_order(request);
  resolve_vocabulary(request);
  const GptData data = gpt_data(request);
  models::GptOptions options = request.gpt;
  options.vocabulary = data.vocabulary;
  resolve_data(request, *data.source);
  check_validation(request, *data.source);
  const models::Gpt sizes(
      options, models::GptPart{});  // only checks the options: it has no blocks and takes no memory
  const auto model = train::gpt_model(options, request.run.seed, request.lora(),
                                      request.recipe.loss_options(), read_split_points(request.split));
  check_before_start(*model, request, config);
}

}  // namespace

void check_training(TrainSettings& request, const std::function<std::string()>& config) {
  as_usage([&] {
    check_outputs(request);
    request.built_in() ? check_gpt(request, config) : check_archive(request, config);
  });
}

std::vector<std::int64_t> microbatch_rows(const train::RunOptions& run) {
  return value::chunk_sizes(run.batch / run.parallel.dp / run.accumulate, run.parallel.microbatches);
}

void resolve_training(TrainSettings& request) {
  adopt_order(request);
  resolve_vocabulary(request);
  if (request.epochs == 0) return;
  if (!request.built_in()) {
    resolve_data(request, *archive_data(request, open_model(request.archive())));
    return;
  }
  resolve_data(request, *gpt_data(request).source);
}

}  // namespace penstock::tool
