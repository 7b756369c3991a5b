// Loaded into a program with LD_PRELOAD: enables as many devices as PENSTOCK_SIMULATED_DEVICES says, with
// PENSTOCK_SIMULATED_MEMORY bytes each if it is set. At exit, a race is reported on standard error and ends
// the program with code 86.
#include "simulated_device.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace penstock::test::simulated {
namespace {

constexpr int kRaceCode = 86;

void report_races() {
  const std::vector<Race> found = races();
  for (const Race& race : found) std::fprintf(stderr, "simulated device: race: %s\n", race.message.c_str());
  if (found.empty()) return;
  std::fflush(nullptr);
  _exit(kRaceCode);
}

// Runs before `main`, and after the initialization of libtorch, which this library is linked to.
struct Preload {
  Preload() {
    const char* const count = std::getenv("PENSTOCK_SIMULATED_DEVICES");
    if (count == nullptr || !available()) return;
    Options options{.devices = static_cast<c10::DeviceIndex>(std::atoi(count))};
    if (const char* const bytes = std::getenv("PENSTOCK_SIMULATED_MEMORY"))
      options.bytes_per_device = static_cast<std::size_t>(std::atoll(bytes));
    enable(options);
    std::atexit(report_races);
  }
} preload;

}  // namespace
}  // namespace penstock::test::simulated
