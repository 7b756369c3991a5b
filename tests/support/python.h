// The Python that computes expected results.
#pragma once

#include "support/program.h"

#include <cstdlib>
#include <string>

namespace penstock::test {

//! The Python that PENSTOCK_PYTHON names, or `python3`. Empty if it has no torch 2.13.
inline std::string python_with_torch() {
  const char* const named = std::getenv("PENSTOCK_PYTHON");
  const std::string python = named != nullptr ? named : "python3";
  const std::string check = "import importlib.metadata as m; assert m.version('torch').startswith('2.13.')";
  return run_program({python, "-c", check}).code == 0 ? python : std::string();
}

}  // namespace penstock::test
