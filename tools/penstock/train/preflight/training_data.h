// The examples of an exported model: the files of `--data`, and how the model takes their tensors.
#pragma once

#include "config/train_settings.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/train/data.h>
#include <penstock/train/model.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

//! The files that `--data` or `--validation-data` names: one or several files, directories or glob patterns,
//! separated by commas. Files of a directory or pattern are sorted by name. Throws UsageError if a file does
//! not exist, or if a directory or pattern has no `.safetensors` files (`.bin` files
//! if they are tokens, else `.txt` files if they are text).
std::vector<std::string> data_files(const std::string& data);

//! Whether the data consists of tokens: it names a `.bin` file, or a directory with such files and without
//! `.safetensors` files, first.
bool are_token_files(const std::string& data);

//! Whether the data names a `.safetensors` file, or a directory with such files, first.
bool are_tensor_files(const std::string& data);

//! Whether the data files can be opened and have no `target`: the model then computes its own loss.
bool lacks_target(const std::string& data);

//! Open data files and what training reads from them.
struct TrainingTable {
  std::shared_ptr<const train::TensorTable> table;
  std::map<std::string, at::ScalarType>
      dtypes;  //!< of all tensors that are read, as model and loss take them
  std::int64_t rows = 0;
};

//! Opens the files and checks the metadata of the tensors. Throws a UsageError that names all missing
//! tensors.
TrainingTable open_training_table(const TrainSettings& request, const train::ArchiveModel& model,
                                  const std::string& data);

//! Checks the elements of the integer tensors, in bounded memory: that they fit the dtypes of the model, its
//! embeddings and its classes. `output` is the output that the loss reads, for `rows` rows, if it is known.
//! Reads at most the first GiB of each tensor. Of targets that are probabilities, checks at most the first
//! 1,024 rows. Throws UsageError.
void check_elements(const train::ArchiveModel& model, const TrainingTable& data, const RecipeSettings& recipe,
                    std::int64_t rows, const std::optional<graph::ValueMeta>& output);

//! Opens the examples for an exported model.
std::unique_ptr<train::DataSource> archive_data(const TrainSettings& request,
                                                const train::ArchiveModel& model);

//! Sets the options that depend on the data: `--epochs` becomes `--steps`, and a resumed run keeps the file
//! order of its checkpoint. Throws UsageError if a batch is larger than the data.
void resolve_data(TrainSettings& request, const train::DataSource& data);
//! Says that batches in file order contain rows twice, if they do.
std::optional<std::string> repeated_rows_note(const TrainSettings& request, const train::DataSource& data);
//! The checkpoint from which the run would resume; nullopt if it does not resume, there is none, or it is
//! damaged: the ranks then search for an older one and report it.
std::optional<checkpoint::Checkpoint> newest_checkpoint(const TrainSettings& request);
//! Takes the order of the examples, and whether some are held out for validation, from the newest checkpoint
//! if the run resumes: a change of either would repeat some rows of the epoch and omit others.
void adopt_order(TrainSettings& request);

//! The checkpoint note that says whether rows are held out, and its text.
inline constexpr const char* kHeldOutNote = "held_out";
std::string held_out_note(bool holds_out);

}  // namespace penstock::tool
