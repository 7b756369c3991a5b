// What a command of the tool is, and the table of them all. `penstock` runs the torch-free ones itself and
// starts `penstock-torch`, beside it, for the others; both executables share this table.
#pragma once

#include <span>
#include <string_view>

namespace penstock::tool {

class Arguments;

//! The executable that a command lives in.
enum class Home { Plan, Torch };

struct Command {
  std::string_view name;
  Home home;
  std::string_view help;     //!< one line
  std::string_view example;  //!< a whole command line
};

//! Declares its options, calls `Arguments::parse`, does its work; returns the exit code (0 fine, 1 the answer
//! is no).
using Handler = int (*)(Arguments&);

//! Every command of both executables, in the order of the help.
std::span<const Command> commands();

//! The code of a command that lives in this executable, or null (plan_handlers.cpp and torch_handlers.cpp).
Handler handler_of(std::string_view name);

//! Once, before a command of this executable runs (in the same files).
void prepare();

//! The row of a command, or null.
const Command* find_command(std::string_view name);

}  // namespace penstock::tool
