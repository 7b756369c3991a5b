// Access to private parts of checkpoints and writers.
#pragma once

#include "checkpoint/commit/files.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/writer.h>

#include <filesystem>
#include <memory>

namespace penstock::checkpoint {

struct Access {
  static Checkpoint checkpoint(std::unique_ptr<Checkpoint::Impl> impl);
  static const Checkpoint::Impl& impl(const Checkpoint& checkpoint);
  static std::unique_ptr<Checkpoint::Impl> release(Checkpoint checkpoint);
  //! `files` must outlive the writer.
  static CheckpointWriter writer(const std::filesystem::path& directory, const comm::Group& group,
                                 const WriterOptions& options, FileSystem& files);
  static std::unique_ptr<CheckpointWriter::Impl> make_impl(const std::filesystem::path& directory,
                                                           const comm::Group& group,
                                                           const WriterOptions& options, FileSystem& files);
};

}  // namespace penstock::checkpoint
