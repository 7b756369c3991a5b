// The table of commands. To add a command, add a row here, a file in commands/, and its handler in
// plan_handlers.cpp or torch_handlers.cpp.
#include "cli/command.h"

#include <array>

namespace penstock::tool {
namespace {

constexpr std::array kCommands = {
    Command{"schedule", Home::Plan, "print or draw a schedule",
            "penstock schedule 1F1B --ranks 4 --microbatches 8 --as grid"},
    Command{"validate", Home::Plan, "report every error of a schedule file",
            "penstock validate my_schedule.csv"},
    Command{"simulate", Home::Plan, "predict step time, bubbles and memory of schedules",
            "penstock simulate 1F1B ZB1P --ranks 4 --microbatches 16"},
    Command{"plan", Home::Plan, "find the fastest partition and schedule under a memory cap",
            "penstock plan --ranks 4 --microbatches 16,32 --costs costs.toml --memory-cap 16GiB"},
    Command{"inspect", Home::Torch, "show the contents of an exported model and its stages",
            "penstock inspect model.pt2 --stages 4"},
    Command{"eval", Home::Torch,
            "run an exported model on several ranks over the examples of a safetensors file",
            "penstock eval model.pt2 --input x.safetensors --output y.safetensors --ranks 2"},
    Command{"costs", Home::Torch, "write the costs of an exported model for simulate and plan",
            "penstock costs model.pt2 -o costs.toml"},
    Command{"run", Home::Torch,
            "start a program on several ranks, with the environment variables of torchrun",
            "penstock run --ranks 4 -- ./my_program --steps 100"},
    Command{"train", Home::Torch, "train an exported model or the built-in GPT on several ranks",
            "penstock train model.pt2 --data data.safetensors --ranks 4 --schedule ZB1P --checkpoint runs"},
    Command{"checkpoint", Home::Torch,
            "inspect or verify a checkpoint, or convert it to or from a single safetensors file",
            "penstock checkpoint verify runs/gpt"},
    Command{"doctor", Home::Torch, "check libtorch, backends and communication on this machine",
            "penstock doctor"},
    Command{"version", Home::Torch, "print the versions of Penstock and of libtorch",
            "penstock version --json"},
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
