// The commands that `penstock-torch` runs.
#include "cli/command.h"
#include "commands/commands.h"

#include <c10/util/Logging.h>

#include <cstdlib>

namespace penstock::tool {

Handler handler_of(std::string_view name) {
  if (name == "checkpoint") return checkpoint_command;
  if (name == "costs") return costs_command;
  if (name == "doctor") return doctor_command;
  if (name == "eval") return eval_command;
  if (name == "inspect") return inspect_command;
  if (name == "run") return run_command;
  if (name == "train") return train_command;
  if (name == "version") return version_command;
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
