// The commands of the tool. `penstock` runs the torch-free commands itself and executes `penstock-torch`, in
// the same directory, for the others. Both executables share this table.
#pragma once

#include <span>
#include <string_view>

namespace penstock::tool {

class Arguments;

//! The executable that contains a command.
enum class Home { Plan, Torch };

struct Command {
  std::string_view name;
  Home home;
  std::string_view help;     //!< one line
  std::string_view example;  //!< a complete command line
};

//! Entry function of a command: declares its options, calls `Arguments::parse` and runs. Returns the exit
//! code: 0 for success, 1 for a negative result.
using Handler = int (*)(Arguments&);

//! All commands of both executables, in help order.
std::span<const Command> commands();

//! Returns the handler of a command in this executable, or null. Defined in plan_handlers.cpp and
//! torch_handlers.cpp.
Handler handler_of(std::string_view name);

//! Called once before a command of this executable runs. Defined in the same two files.
void prepare();

//! Returns the command with this name, or null.
const Command* find_command(std::string_view name);

}  // namespace penstock::tool
