// The commands that `penstock` runs itself.
#include "cli/command.h"
#include "commands/commands.h"

namespace penstock::tool {

Handler handler_of(std::string_view name) {
  if (name == "schedule") return schedule_command;
  if (name == "validate") return validate_command;
  if (name == "simulate") return simulate_command;
  if (name == "plan") return plan_command;
  return nullptr;
}

void prepare() {}

}  // namespace penstock::tool
