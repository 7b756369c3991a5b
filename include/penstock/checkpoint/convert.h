// Converts between a checkpoint and a single safetensors file, so that Python and other tools can read
// checkpoints and Penstock can continue to train models from elsewhere.
#pragma once

#include <penstock/checkpoint/checkpoint.h>

#include <filesystem>

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

//! Converts a file to the checkpoint DIRECTORY/step-N and returns its path. N is the step recorded by
//! `export_safetensors`, else 0. Restores optimizer states, extras and notes exported with Everything. Throws
//! UsageError if that checkpoint exists, unless `overwrite`; StorageError if a run is writing to the
//! directory.
std::filesystem::path import_safetensors(const std::filesystem::path& file,
                                         const std::filesystem::path& directory, bool overwrite = false);

//! Opens the checkpoint at a path: the directory of one step, or a directory of checkpoints, of which it
//! opens the newest complete one.
Checkpoint open_checkpoint(const std::filesystem::path& path);

}  // namespace penstock::checkpoint
