// The table of commands, from commands/commands.def.
#include "cli/command.h"

#include <array>

namespace penstock::tool {
namespace {

constexpr std::array kCommands = {
#define PENSTOCK_PLAN_COMMAND(name, help, example) Command{#name, Home::Plan, help, example},
#define PENSTOCK_TORCH_COMMAND(name, help, example) Command{#name, Home::Torch, help, example},
#include "commands/commands.def"
};

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

const Command* find_command(std::string_view name) {
  for (const Command& command : kCommands) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

}  // namespace penstock::tool
