// Runs of the command with faults on order, and what must hold afterwards.
#pragma once

#include "support/program.h"

#include <string>
#include <vector>

namespace penstock::test {

//! `penstock train` of a tiny model, with what it left behind.
struct FaultRun {
  Outcome outcome;
  std::vector<std::string> losses;  //!< of its log, as text
  std::string left;                 //!< processes and temporary files that are still there
  double seconds = 0;
};

FaultRun run_with_faults(const std::string& faults, const std::vector<std::string>& words,
                         const std::string& directory);

//! Processes whose command line holds the text.
std::string processes_with(const std::string& text);

}  // namespace penstock::test
