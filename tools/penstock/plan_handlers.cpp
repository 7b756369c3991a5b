// The commands that `penstock` runs itself.
#include "command.h"
#include "commands/commands.h"

namespace penstock::tool {

Handler handler_of(std::string_view) {
  return nullptr;
}

}  // namespace penstock::tool
