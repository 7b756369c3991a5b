// The table of commands. A new command: a row here, a file in commands/, and its handler in plan_handlers.cpp
// or torch_handlers.cpp.
#include "command.h"

#include <array>

namespace penstock::tool {
namespace {

constexpr std::array kCommands = {
    Command{"schedule", Home::Plan, "prints or draws a schedule",
            "penstock schedule 1F1B --ranks 4 --microbatches 8 --as grid"},
    Command{"validate", Home::Plan, "says everything that is wrong with a schedule file",
            "penstock validate my_schedule.csv"},
    Command{"simulate", Home::Plan, "predicts step time, bubbles and memory of schedules",
            "penstock simulate 1F1B ZB1P --ranks 4 --microbatches 16"},
    Command{"plan", Home::Plan, "finds the partition and the schedule that are fastest under a memory cap",
            "penstock plan --ranks 4 --microbatches 16,32 --costs costs.toml --memory-cap 16GiB"},
    Command{"inspect", Home::Torch, "shows what an exported model is made of and how it splits into stages",
            "penstock inspect model.pt2 --stages 4"},
    Command{"eval", Home::Torch, "runs an exported model over ranks on the examples of a safetensors file",
            "penstock eval model.pt2 --input x.safetensors --output y.safetensors --ranks 2"},
    Command{"costs", Home::Torch, "writes the costs of an exported model as simulate and plan read them",
            "penstock costs model.pt2 -o costs.toml"},
    Command{"run", Home::Torch,
            "starts a program on several ranks with torchrun's environment, and ends them together",
            "penstock run --ranks 4 -- ./my_program --steps 100"},
    Command{"train", Home::Torch, "trains an exported model, or without one the built-in GPT, over ranks",
            "penstock train model.pt2 --data data.safetensors --ranks 4 --schedule ZB1P --checkpoint runs"},
    Command{
        "checkpoint", Home::Torch,
        "shows what a checkpoint holds, checks every byte of it, makes one safetensors file of it or back",
        "penstock checkpoint verify runs/gpt"},
    Command{"doctor", Home::Torch, "what was found on this machine and whether it works", "penstock doctor"},
    Command{"version", Home::Torch, "the versions of Penstock and of the libtorch that it runs on",
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
