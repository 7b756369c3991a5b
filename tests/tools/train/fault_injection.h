// Runs of `penstock train` with injected faults, and the checks afterwards.
#pragma once

#include "support/program.h"

#include <string>
#include <vector>

namespace penstock::test {

//! The result of `penstock train` with a tiny model.
struct FaultRun {
  Outcome outcome;
  std::vector<std::string> losses;  //!< from its log, as text
  std::string left;                 //!< remaining processes and temporary files
  double seconds = 0;
};

struct FaultCase {
  std::string faults;
  std::vector<std::string> words;
  std::string directory;
};

FaultRun run_with_faults(const std::string& faults, const std::vector<std::string>& words,
                         const std::string& directory);

//! The number of concurrent runs with faults on two cores: such a run mostly waits for timeouts.
constexpr std::size_t kAtOnce = 5;

//! Runs several cases, this many concurrently.
std::vector<FaultRun> run_with_faults(const std::vector<FaultCase>& cases, std::size_t at_once);

//! A command ends or restarts at most 30 s after each fault. In addition, the ranks must start and compute,
//! which depends on the load of the machine: each attempt gets three times the seconds of a fault-free run
//! measured at the same time.
double bound(int faults, const FaultRun& fault_free);

//! Runs with `each` random faults in sequence must end with the losses of a fault-free run. Some run
//! concurrently.
void soak(unsigned seed, int runs, int each);

//! The losses in a log, as text.
std::vector<std::string> losses_of(const std::string& log);

//! Processes whose command line contains the text.
std::string processes_with(const std::string& text);

}  // namespace penstock::test
