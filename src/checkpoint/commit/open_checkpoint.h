// The state of an open checkpoint.
#pragma once

#include "checkpoint/commit/manifest.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/safetensors.h>

#include <map>
#include <optional>

namespace penstock::checkpoint {

struct Checkpoint::Impl {
  std::filesystem::path path;
  std::filesystem::path directory;  //!< of the files
  bool has_checksums = true;
  Manifest manifest;
  //! Index of each tensor in the manifest, by (name or alias, state).
  std::map<std::pair<std::string, std::string>, std::size_t> locations;
  mutable std::map<std::size_t, SafetensorsFile> open;

  std::string file_path(std::size_t file) const {
    return directory.string() + "/" + manifest.files[file].name;
  }

  //! Returns a file of the checkpoint; opens it on the first call. Throws CheckpointError if its header does
  //! not match the manifest.
  const SafetensorsFile& file(std::size_t index) const;
  //! Like `file`, but also checks that the file contains this piece.
  const SafetensorsFile& file_of(const StoredTensor& tensor, const StoredTensor::StoredPiece& piece) const;

  //! Fills `locations` from the manifest.
  void index_tensors();
  //! Reads every byte of one file and returns every problem found.
  Diagnostics verify_file(std::size_t file) const;
};

}  // namespace penstock::checkpoint
