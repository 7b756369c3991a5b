// The commands that `penstock-torch` runs.
#include "cli/command.h"
#include "commands/commands.h"

#include <c10/util/Logging.h>

#include <cstdlib>

namespace penstock::tool {

Handler handler_of(std::string_view command) {
#define PENSTOCK_TORCH_COMMAND(name, ...) \
  if (command == #name) return name##_command;
#define PENSTOCK_PLAN_COMMAND(name, ...)
#include "commands/commands.def"
  return nullptr;
}

// Silence libtorch's log: it reports socket errors with stack traces, and Penstock's own messages report the
// same errors.
void prepare() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr)
    return c10::initLogging();  // libtorch reads the variable only here
#ifndef C10_USE_GLOG
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;
#endif
}

}  // namespace penstock::tool
