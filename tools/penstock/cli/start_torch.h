// Runs commands of `penstock-torch` from `penstock`.
#pragma once

#include "cli/command.h"

#include <string>
#include <vector>

namespace penstock::tool {

//! Replaces this process with `penstock-torch COMMAND args…` from the same directory. Throws Error if that
//! fails or if there is no libtorch.
[[noreturn]] void start_torch(const Command& command, const std::vector<std::string>& args);

//! Exit code and standard output of `penstock-torch COMMAND args…`.
struct TorchOutput {
  int code = 0;  //!< if not 0, the program has printed its error to stderr
  std::string text;
};
TorchOutput output_of_torch(const std::string& command, const std::vector<std::string>& args);

}  // namespace penstock::tool
