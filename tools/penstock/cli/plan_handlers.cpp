// The commands that `penstock` runs itself.
#include "cli/command.h"
#include "commands/commands.h"

namespace penstock::tool {

Handler handler_of(std::string_view command) {
#define PENSTOCK_PLAN_COMMAND(name, ...) \
  if (command == #name) return name##_command;
#define PENSTOCK_TORCH_COMMAND(name, ...)
#include "commands/commands.def"
  return nullptr;
}

void prepare() {}

}  // namespace penstock::tool
