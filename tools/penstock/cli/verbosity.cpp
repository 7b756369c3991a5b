// Sets the log level.
#include "cli/verbosity.h"

#include <penstock/base/error.h>
#include <penstock/base/log.h>

#include <algorithm>

namespace penstock::tool {

void Verbosity::apply() const {
  if (quiet && verbose)
    throw UsageError("--quiet and --verbose are mutually exclusive", {}, "give only one of them");
  // PENSTOCK_LOG may ask for more. Without --verbose, the level stays, but it is chosen: the tool itself
  // prints which launcher it found.
  set_log_level(verbose ? std::max(log_level(), LogLevel::Info) : log_level());
}

void Verbosity::pass_to(std::map<std::string, std::string>& environment) const {
  if (verbose) environment["PENSTOCK_LOG"] = to_string(log_level());
}

}  // namespace penstock::tool
