// The commands that `penstock-torch` runs.
#include "command.h"
#include "commands/commands.h"

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

}  // namespace penstock::tool
