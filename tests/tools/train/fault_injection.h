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

struct FaultCase {
  std::string faults;
  std::vector<std::string> words;
  std::string directory;
};

FaultRun run_with_faults(const std::string& faults, const std::vector<std::string>& words,
                         const std::string& directory);

//! How many runs with faults two cores carry at a time: most of such a run is waiting for silence.
constexpr std::size_t kAtOnce = 5;

//! Several, so many at a time.
std::vector<FaultRun> run_with_faults(const std::vector<FaultCase>& cases, std::size_t at_once);

//! A command ends, or has started again, at most 30 s after each fault. Beside that the ranks must start and
//! compute, which takes what the machine takes at this hour: each attempt gets three times the seconds of a
//! quiet run that was measured beside it.
double bound(int faults, const FaultRun& quiet);

//! Runs that meet random faults, `each` one after the other, must end with the losses of a quiet run. Some
//! go on at the same time.
void soak(unsigned seed, int runs, int each);

//! The losses of a log, as text.
std::vector<std::string> losses_of(const std::string& log);

//! Processes whose command line holds the text.
std::string processes_with(const std::string& text);

}  // namespace penstock::test
