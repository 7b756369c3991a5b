// Finds, opens and checks the examples of an exported model.
#include "train/preflight/training_data.h"

#include "base/text.h"
#include "cli/paths.h"
#include "train/data/locked_source.h"
#include "train/preflight/model_checks.h"
#include "train/preflight/token_data.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>
#include <penstock/value/tensor_meta.h>

#include <ATen/ops/empty.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

namespace penstock::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTarget = "target";
constexpr const char* kExtension = ".safetensors";
constexpr const char* kTokenExtension = ".bin";
constexpr const char* kTextExtension = ".txt";

std::vector<std::string> files_in(const std::string& directory, const std::string& extension) {
  std::vector<std::string> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error))
    if (entry.path().extension() == extension && entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> files_of_directory(const std::string& directory, const std::string& extension) {
  std::vector<std::string> files = files_in(directory, extension);
  if (files.empty())
    throw UsageError(str_cat(quote(directory, 200), " is a directory without ", extension, " files"), {},
                     str_cat("name files that end in ", extension, ", or a directory that contains them"));
  return files;
}

std::vector<std::string> files_of_pattern(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (files.empty())
    throw UsageError("no file matches " + quote(pattern, 200), {},
                     "check the pattern, and quote it for the shell");
  return files;
}

// The extension of the first file of the data. A directory may contain files of several kinds.
std::string extension_of(const std::string& data) {
  const std::string first = data.substr(0, data.find(','));
  std::error_code error;
  if (!fs::is_directory(first, error)) return fs::path(first).extension();
  for (const char* const extension : {kExtension, kTokenExtension, kTextExtension})
    if (!files_in(first, extension).empty()) return extension;
  return "";
}

// Rows of a tensor that take at most this many bytes; at least one.
std::int64_t rows_in(std::int64_t bytes, std::int64_t row_bytes) {
  return std::max<std::int64_t>(1, bytes / std::max<std::int64_t>(1, row_bytes));
}

std::int64_t row_bytes(const train::TableColumn& column) {
  const std::int64_t elements =
      std::accumulate(column.shape.begin() + 1, column.shape.end(), std::int64_t{1}, std::multiplies<>());
  return elements * static_cast<std::int64_t>(c10::elementSize(column.dtype));
}

// The first targets, at most 1,024 and at most this many bytes.
at::Tensor first_targets(const TrainingTable& data, std::int64_t bytes) {
  constexpr std::int64_t most = 1024;
  const std::int64_t count = std::min(rows_in(bytes, row_bytes(data.table->columns().at(kTarget))), most);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(std::min(count, data.rows)));
  std::iota(rows.begin(), rows.end(), 0);
  return data.table->take(kTarget, rows);
}

// Whether a dtype can be converted to another one without changing the meaning of its numbers.
bool same_kind(at::ScalarType a, at::ScalarType b) {
  return a == b || (is_integer(a) && is_integer(b)) || (at::isFloatingType(a) && at::isFloatingType(b));
}

// Both tables are read with the dtypes of the training data.
void check_same_tensors(const TrainSettings& request, const TrainingTable& training,
                        const TrainingTable& validation) {
  const auto text = [](const train::TableColumn& column) {
    return value::dtype_name(column.dtype) + format_shape(column.shape);
  };
  for (const auto& [name, dtype] : training.dtypes) {
    const train::TableColumn& first = training.table->columns().at(name);
    const train::TableColumn& second = validation.table->columns().at(name);
    const bool same_shape =
        std::equal(first.shape.begin() + 1, first.shape.end(), second.shape.begin() + 1, second.shape.end());
    if (same_shape && same_kind(dtype, validation.dtypes.at(name))) continue;
    throw UsageError("the tensor " + quote(name) + " is " + text(second) + " in " +
                         quote(request.validation_data, 200) + ", but " + text(first) + " in " +
                         quote(request.data, 200),
                     {}, "store the same dtype and shape, except for dim 0, for training and validation");
  }
}

at::Tensor without_rows(const train::TableColumn& column) {
  std::vector<std::int64_t> shape = column.shape;
  shape[0] = 0;
  return at::empty(shape, at::TensorOptions(column.dtype));
}

}  // namespace

bool are_token_files(const std::string& data) {
  return extension_of(data) == kTokenExtension;
}

bool are_tensor_files(const std::string& data) {
  return extension_of(data) == kExtension;
}

std::vector<std::string> data_files(const std::string& data) {
  const std::string first = extension_of(data);
  const std::string extension = first == kTokenExtension || first == kTextExtension ? first : kExtension;
  std::error_code error;
  if (fs::is_regular_file(data, error)) return {data};
  std::vector<std::string> files;
  for (std::size_t begin = 0; begin <= data.size();) {
    const std::size_t end = std::min(data.find(',', begin), data.size());
    const std::string item = data.substr(begin, end - begin);
    begin = end + 1;
    if (item.empty())
      throw UsageError("the list of files " + quote(data, 200) + " has an empty entry", {},
                       "write file names with single commas between them, and none at the end");
    if (fs::is_directory(item, error)) {
      for (std::string& file : files_of_directory(item, extension)) files.push_back(std::move(file));
    } else if (!fs::exists(item, error) && item.find_first_of("*?[") != std::string::npos) {
      for (std::string& file : files_of_pattern(item)) files.push_back(std::move(file));
    } else {
      files.push_back(item);
    }
  }
  for (const std::string& file : files) check_input_file(file, extension);
  return files;
}

bool lacks_target(const std::string& data) {
  if (!are_tensor_files(data)) return false;
  try {
    const std::vector<std::string> files = data_files(data);
    return !train::safetensors_table({files.front()})->columns().contains(kTarget);
  } catch (const Error&) {
    return false;  // the checks report it
  }
}

TrainingTable open_training_table(const TrainSettings& request, const train::ArchiveModel& model,
                                  const std::string& data) {
  const std::vector<std::string> files = data_files(data);
  if (!request.reads_tokens() && extension_of(data) == kTextExtension)
    throw UsageError("an exported model cannot be trained on the characters of " + quote(data, 200), {},
                     "name the tokenizer of the model with --tokenizer FILE.json, or store tensors with "
                     "safetensors.torch.save_file");
  TrainingTable result;
  result.table = as_usage(
      [&] {
        return request.reads_tokens() ? open_sequences(request, model, data)
                                      : train::safetensors_table({files.begin(), files.end()});
      },
      quote(data, 200) +
          " must be a file written by safetensors.torch.save_file({\"input\": …, \"target\": …}, path)");
  const std::map<std::string, train::TableColumn>& columns = result.table->columns();
  std::vector<std::string> wanted, there, missing;
  for (const auto& names : {model.positional, model.keywords})
    for (const std::string& name : names)
      if (!model.constants.contains(name)) wanted.push_back(name);
  if (!model.computes_loss) wanted.emplace_back(kTarget);
  for (const auto& [name, column] : columns) there.push_back(name);
  for (const std::string& name : wanted)
    if (!columns.contains(name)) missing.push_back(quote(name));
  if (!missing.empty())
    throw UsageError(
        quote(data, 200) + " has no tensor " + join(missing, ", ") + "; it has " +
            (there.empty() ? "none" : join(there, ", ")),
        {},
        model.computes_loss
            ? "name the tensors after the model's inputs: " + join(wanted, ", ")
            : "name the tensors after the model's inputs, and the labels 'target': " + join(wanted, ", ") +
                  "; if the model computes its own loss, name that output with --loss-output");
  for (const std::string& name : wanted) {
    const train::TableColumn& column = columns.at(name);
    if (column.shape.empty())
      throw UsageError("the tensor " + quote(name) + " is a scalar", {}, "add a first dim for the examples");
    const train::TableColumn& first = columns.at(wanted.front());
    if (column.shape[0] != first.shape[0])
      throw UsageError(str_cat("the tensor ", quote(name), " has ", column.shape[0], " examples, ",
                               quote(wanted.front()), " has ", first.shape[0]),
                       {}, "store the same number of examples (dim 0) in every tensor");
    if (column.shape[0] == 0)
      throw UsageError("the tensor " + quote(name) + " has no examples", {},
                       "store at least one row in every tensor");
    result.rows = column.shape[0];
    const auto dtype = model.dtypes.find(name);
    result.dtypes[name] = name == kTarget ? target_dtype(model, request.recipe.loss, column.dtype)
                          : dtype == model.dtypes.end() ? column.dtype
                                                        : dtype->second;
    if (name != kTarget) with_dtype(without_rows(column), result.dtypes[name], name);
  }
  result.table->check_rows_match(wanted);
  return result;
}

void check_elements(const train::ArchiveModel& model, const TrainingTable& data, const RecipeSettings& recipe,
                    std::int64_t rows, const std::optional<graph::ValueMeta>& output) {
  constexpr std::int64_t chunk_bytes = std::int64_t{16} << 20, most_bytes = std::int64_t{1} << 30;
  const graph::Graph& graph = *model.graph;
  std::int64_t widest = 1;
  for (const auto& [name, dtype] : data.dtypes)
    if (is_integer(data.table->columns().at(name).dtype))
      widest = std::max(widest, row_bytes(data.table->columns().at(name)));
  const std::int64_t end = std::min(data.rows, rows_in(most_bytes, widest));
  const std::int64_t chunk = rows_in(chunk_bytes, widest);
  for (std::int64_t begin = 0; begin < end; begin += chunk) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(chunk, end - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    // Of tensors that are not integers, one row is enough for the checks.
    const auto take = [&](const std::string& name) {
      const bool all = is_integer(data.table->columns().at(name).dtype);
      return data.table->take(name, all ? indices : std::vector<std::int64_t>{begin});
    };
    std::vector<c10::IValue> leaves;
    for (const graph::GraphInput& input : graph.inputs) {
      const std::string& name = graph.value(input.value).name;
      const bool read = data.dtypes.contains(name) && !input.constant;
      leaves.push_back(read ? c10::IValue(with_dtype(take(name), data.dtypes.at(name), name))
                            : c10::IValue());
    }
    check_tokens(graph, leaves);
    if (output && !model.computes_loss)
      check_target(take(kTarget).to(data.dtypes.at(kTarget)), rows, *output, recipe.loss, recipe.class_dim);
  }
  if (!model.computes_loss)
    check_probabilities(first_targets(data, chunk_bytes), recipe.loss, recipe.class_dim);
}

std::unique_ptr<train::DataSource> archive_data(const TrainSettings& request,
                                                const train::ArchiveModel& model) {
  const TrainingTable training = open_training_table(request, model, request.data);
  const bool validates = request.run.eval_every.has_value(), has_file = !request.validation_data.empty();
  train::TensorDataOptions options{model.positional, model.keywords};
  options.validation_fraction = request.holds_out_rows() ? request.validation : 0;
  options.order = {.shuffle = !request.no_shuffle, .drop_last = request.drop_last, .seed = request.run.seed};
  options.dtypes = training.dtypes;
  options.constants = model.constants;
  options.has_target = !model.computes_loss;
  options.labels = model.labels;
  if (request.reads_tokens()) options.tokens_per_row = sequence_length(*training.table);
  if (validates && has_file) {
    const TrainingTable validation = open_training_table(request, model, request.validation_data);
    check_same_tensors(request, training, validation);
    options.validation = validation.table;
  }
  return train::tensor_data(training.table, options);
}

std::optional<std::string> repeated_rows_note(const TrainSettings& request, const train::DataSource& data) {
  if (!request.no_shuffle || request.drop_last) return std::nullopt;
  const std::int64_t examples = data.steps_of(1, 1).value_or(request.run.batch);
  if (request.run.batch <= examples) return std::nullopt;
  return str_cat("each batch of ", request.run.batch, " rows contains some rows more than once: there are ",
                 counted(examples, "training example"), ", and --no-shuffle wraps around");
}

std::optional<checkpoint::Checkpoint> newest_checkpoint(const TrainSettings& request) {
  if (!request.run.checkpoint.resume) return std::nullopt;
  std::error_code error;
  const fs::path& directory = *request.run.checkpoint.directory;
  if (!fs::is_directory(directory, error)) return std::nullopt;
  const std::vector<checkpoint::CheckpointLocation> all = checkpoint::list_checkpoints(directory);
  const auto newest = std::find_if(all.rbegin(), all.rend(), [](const auto& it) { return it.complete; });
  if (newest == all.rend()) return std::nullopt;
  try {
    return checkpoint::Checkpoint(newest->path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void adopt_order(TrainSettings& request) {
  const std::optional<checkpoint::Checkpoint> stored = newest_checkpoint(request);
  if (!stored) return;
  try {
    bool validated_on_file = false;
    std::optional<bool> validated;
    for (const ConfigValue& item :
         read_config_text(stored->note("config").value_or(""), stored->path().string())) {
      if (item.key == "no-shuffle" && std::get<bool>(item.value)) request.no_shuffle = true;
      if (item.key == "eval-every") validated = std::get<std::int64_t>(item.value) > 0;
      if (item.key == "validation-data") validated_on_file = !std::get<std::string>(item.value).empty();
    }
    // A run that was resumed itself may hold out rows without validations.
    if (const auto note = stored->note(kHeldOutNote))
      request.holds_out = *note == held_out_note(true);
    else if (validated)
      request.holds_out = *validated && !validated_on_file;
  } catch (const Error&) {
    return;  // damaged: the ranks search for an older one and report it
  }
}

std::string held_out_note(bool holds_out) {
  return holds_out ? "yes" : "no";
}

namespace {

// The steps of `--epochs`, of which a resumed run has done some, possibly with another batch.
std::optional<std::int64_t> steps_of_epochs(const TrainSettings& request, const train::DataSource& data) {
  if (const auto stored = newest_checkpoint(request))
    if (const auto position = stored->note(train::kPositionNote))
      if (const auto rest = data.continued(stored->step(), *position))
        return rest->steps_of(request.epochs, request.run.batch);
  return data.steps_of(request.epochs, request.run.batch);
}

}  // namespace

void resolve_data(TrainSettings& request, const train::DataSource& data) {
  const std::int64_t batch = request.run.batch;
  try {
    data.steps_of(1, batch);
  } catch (const UsageError& error) {
    throw UsageError(error.message(), {},
                     "use a smaller --batch, or --no-shuffle, with which batches wrap around");
  }
  if (request.epochs == 0) return;
  std::optional<std::int64_t> steps;
  try {
    steps = steps_of_epochs(request, data);
  } catch (const UsageError& error) {
    throw UsageError(error.message(), {}, "use fewer --epochs");
  }
  if (!steps)
    throw UsageError("--epochs needs data with an end", {}, "give the number of steps with --steps");
  request.resolve_steps(*steps);
}

}  // namespace penstock::tool
