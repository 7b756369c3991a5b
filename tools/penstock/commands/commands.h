// The entry function of each command. Each is defined in its own file in this folder.
#pragma once

namespace penstock::tool {

class Arguments;

#define PENSTOCK_PLAN_COMMAND(name, ...) int name##_command(Arguments& arguments);
#define PENSTOCK_TORCH_COMMAND(name, ...) int name##_command(Arguments& arguments);
#include "commands/commands.def"

}  // namespace penstock::tool
