// A checkpoint writer on replaced file system operations, for tests.
#pragma once

#include "checkpoint/commit/files.h"

#include <penstock/checkpoint/writer.h>

namespace penstock::checkpoint {

struct Access {
  //! `files` must outlive the writer.
  static CheckpointWriter writer(const std::filesystem::path& directory, const comm::Group& group,
                                 const WriterOptions& options, FileSystem& files) {
    return {directory, group, options, files};
  }
};

}  // namespace penstock::checkpoint
