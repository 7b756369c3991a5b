// From a checkpoint to one plain safetensors file and back, so that Python and other tools can read it and
// models from elsewhere can be trained on.
#pragma once

#include <penstock/checkpoint/checkpoint.h>

#include <string>

namespace penstock {

//! Which tensors become part of the file.
enum class ExportContent {
  Model,       //!< parameters and buffers under every name they have: the model's state_dict
  Everything,  //!< also optimizer states (`optimizer/exp_avg/NAME`), extras (`extra/NAME`) and notes
               //!< (metadata)
};

//! Writes one file, a tensor at a time. A file of that name is replaced.
void export_safetensors(const Checkpoint& checkpoint, const std::string& file,
                        ExportContent content = ExportContent::Model);

//! Makes a checkpoint of a file, as DIRECTORY/step-N, with the step that `export_safetensors` noted, else 0.
//! Names that Everything gave are read back as what they were. Returns its path. UsageError if there is a
//! checkpoint of that step, unless `overwrite`; StorageError if a run is writing into the directory.
std::string import_safetensors(const std::string& file, const std::string& directory, bool overwrite = false);

//! The checkpoint that a path means: that of one step, or the newest complete one of a directory of them.
Checkpoint open_checkpoint(const std::string& path);

}  // namespace penstock
