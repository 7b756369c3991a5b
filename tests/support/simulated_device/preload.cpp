// Loaded into a program with LD_PRELOAD: enables as many devices as PENSTOCK_SIMULATED_DEVICES says. At exit,
// a race is reported on standard error and ends the program with code 86.
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
    enable({.devices = static_cast<c10::DeviceIndex>(std::atoi(count))});
    std::atexit(report_races);
  }
} preload;

}  // namespace
}  // namespace penstock::test::simulated
