// The hand-over from `penstock` to `penstock-torch`.
#pragma once

#include "command.h"

#include <string>
#include <vector>

namespace penstock::tool {

//! Becomes `penstock-torch COMMAND words…`, which lies beside this executable; throws if it cannot.
[[noreturn]] void start_torch(const Command& command, const std::vector<std::string>& words);

//! What `penstock-torch COMMAND words…` prints, for commands that go on with it.
struct TorchOutput {
  int code = 0;  //!< it has said on stderr what is wrong, unless 0
  std::string text;
};
TorchOutput output_of_torch(const std::string& command, const std::vector<std::string>& words);

}  // namespace penstock::tool
