// `-q,--quiet` and `-v,--verbose`: how much a command that starts ranks prints.
#pragma once

#include "cli/arguments.h"

#include <map>
#include <string>

namespace penstock::tool {

struct Verbosity {
  bool quiet = false;    //!< only warnings, errors and the result
  bool verbose = false;  //!< the library's log at level `info` or higher

  static constexpr const char* kQuietNames = "-q,--quiet";
  static constexpr const char* kQuietHelp = "print only warnings, errors and the result";
  static constexpr const char* kVerboseNames = "-v,--verbose";
  static constexpr const char* kVerboseHelp =
      "print the library's log of the command and its ranks on standard error (PENSTOCK_LOG=info)";

  void declare(Arguments& arguments) {
    arguments.flag(kQuietNames, quiet, kQuietHelp);
    arguments.flag(kVerboseNames, verbose, kVerboseHelp);
  }

  //! Sets the log level of this process. Throws UsageError if both flags are set.
  void apply() const;

  //! Passes the log level to ranks, in their environment.
  void pass_to(std::map<std::string, std::string>& environment) const;
};

}  // namespace penstock::tool
