// `penstock version`: prints the versions of Penstock and of the loaded libtorch.
#include "base/json.h"
#include "cli/arguments.h"
#include "commands/commands.h"

#include <penstock/torch_version.h>
#include <penstock/version.h>

namespace penstock::tool {

int version_command(Arguments& arguments) {
  arguments.parse();
  if (arguments.json()) {
    JsonWriter json;
    json.begin_object().field("penstock", version()).field("libtorch", torch_version()).end_object();
    print(json.text() + "\n");
  } else {
    print("penstock " + version() + "\nlibtorch " + torch_version() + "\n");
  }
  return 0;
}

}  // namespace penstock::tool
