// Opening of input files. A FIFO without a writer would make `open` wait for ever, and a device or a
// directory has no size; so only regular files are opened.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

struct RegularFile {
  int descriptor = -1;  //!< open for reading; the caller closes it
  std::uint64_t size = 0;
  int error = 0;        //!< errno if it is not open
  std::string problem;  //!< the same in words: `it is a FIFO, not a regular file`
};

//! Never waits. Follows symbolic links.
RegularFile open_regular_file(const std::string& path);

}  // namespace penstock
