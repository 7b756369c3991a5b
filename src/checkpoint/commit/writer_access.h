// A checkpoint writer with other file system operations, for tests.
#pragma once

#include "checkpoint/commit/files.h"

#include <penstock/checkpoint/writer.h>

#include <filesystem>
#include <memory>

namespace penstock::checkpoint {

struct Access {
  //! `files` must outlive the writer.
  static CheckpointWriter writer(const std::filesystem::path& directory, const comm::Group& group,
                                 const WriterOptions& options, FileSystem& files);
  static std::unique_ptr<CheckpointWriter::Impl> make_impl(const std::filesystem::path& directory,
                                                           const comm::Group& group,
                                                           const WriterOptions& options, FileSystem& files);
};

}  // namespace penstock::checkpoint
