// Opens input files. Accepts only regular files: opening a FIFO without a writer blocks forever, and devices
// and directories have no size.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

struct RegularFile {
  int descriptor = -1;  //!< open for reading; the caller must close it
  std::uint64_t size = 0;
  int error = 0;        //!< errno if opening failed
  std::string problem;  //!< the error as text: `it is a FIFO, not a regular file`
};

//! Never blocks. Follows symbolic links.
RegularFile open_regular_file(const std::string& path);

}  // namespace penstock
