// Converts between a checkpoint and safetensors files, so that Python and other tools can read checkpoints
// and Penstock can continue to train models from elsewhere.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/rename.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace penstock::checkpoint {

//! Which tensors the exported file contains.
enum class ExportContent {
  Model,       //!< parameters and buffers under all their names: the model's state_dict
  Everything,  //!< also optimizer states (`optimizer/exp_avg/NAME`), extras (`extra/NAME`) and notes
               //!< (metadata)
};

//! Writes one file, one tensor at a time. Replaces an existing file.
void export_safetensors(const Checkpoint& checkpoint, const std::filesystem::path& file,
                        ExportContent content = ExportContent::Model);

//! Weights to export that are in no checkpoint, such as those with merged adapters.
struct ComputedWeights {
  std::vector<Piece> state;  //!< parameters and buffers, of which only metadata is used
  std::function<at::Tensor(const std::string& name)> read;  //!< by the name of a piece
  std::int64_t step = 0;
};
void export_safetensors(const ComputedWeights& weights, const std::filesystem::path& file);

//! Writes the format of Hugging Face to a directory, which it creates: files
//! `model-00001-of-0000N.safetensors` of at most `max_bytes` bytes of tensors, in the order of their names,
//! and `model.safetensors.index.json`. A larger tensor gets a file of its own. If one file is enough, it is
//! called `model.safetensors` and has no index. Replaces and removes such files of an earlier export. Returns
//! the path of the index or of the only file.
std::filesystem::path export_sharded_safetensors(const Checkpoint& checkpoint,
                                                 const std::filesystem::path& directory,
                                                 std::uint64_t max_bytes,
                                                 ExportContent content = ExportContent::Model);
std::filesystem::path export_sharded_safetensors(const ComputedWeights& weights,
                                                 const std::filesystem::path& directory,
                                                 std::uint64_t max_bytes);

//! Converts a safetensors file, or weights in the format of Hugging Face (a directory or index), to the
//! checkpoint DIRECTORY/step-N and returns its path. N is the step recorded by an export, else 0. Restores
//! optimizer states, extras and notes exported with Everything. Renames the tensors by the rules. Throws
//! UsageError if that checkpoint exists, unless `overwrite`, or if there are rules and optimizer states;
//! StorageError if a run is writing to the directory.
std::filesystem::path import_safetensors(const std::filesystem::path& source,
                                         const std::filesystem::path& directory, bool overwrite = false,
                                         const std::vector<RenameRule>& renames = {});

//! Opens the checkpoint at a path: the directory of one step, or a directory of checkpoints, of which it
//! opens the newest complete one.
Checkpoint open_checkpoint(const std::filesystem::path& path);

}  // namespace penstock::checkpoint
