// The hand-over from `penstock` to `penstock-torch`.
#pragma once

#include "command.h"

#include <string>
#include <vector>

namespace penstock::tool {

//! Becomes `penstock-torch COMMAND words…`, which lies beside this executable; throws if it cannot.
[[noreturn]] void start_torch(const Command& command, const std::vector<std::string>& words);

}  // namespace penstock::tool
