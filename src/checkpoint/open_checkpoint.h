// What an open checkpoint consists of.
#pragma once

#include "checkpoint/manifest.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/safetensors.h>

#include <map>
#include <optional>

namespace penstock {

struct Checkpoint::Content {
  std::string path;
  Manifest manifest;
  std::map<std::pair<std::string, std::string>, std::size_t> places;  //!< by name or alias, and state
  mutable std::map<std::size_t, SafetensorsFile> open;

  std::string file_path(std::size_t file) const { return path + "/" + manifest.files[file].name; }

  //! Opens a file of the checkpoint at the first call. CheckpointError if it is not what the manifest says,
  //! as far as its header tells.
  const SafetensorsFile& file(std::size_t index) const;
  //! The same, and that it holds this piece.
  const SafetensorsFile& file_of(const StoredTensor& tensor, const StoredTensor::StoredPiece& piece) const;

  //! Everything that is wrong with one file: every byte of it is read.
  Diagnostics verify_file(std::size_t file) const;
};

}  // namespace penstock
