// The fixture of tests on simulated devices.
#pragma once

#include "support/simulated_device/simulated_device.h"

#include <ATen/DeviceAccelerator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

namespace penstock::test {

inline const c10::Device kCuda0(c10::kCUDA, 0), kCuda1(c10::kCUDA, 1);

//! Enables the devices. A race that the test did not take is a failure.
class SimulatedDeviceTest : public testing::Test {
 protected:
  SimulatedDeviceTest() {
    if (simulated::available()) simulated::enable();
  }
  void SetUp() override {
    if (!simulated::available()) GTEST_SKIP() << "this libtorch has a CUDA of its own";
    settle();
  }
  void TearDown() override {
    if (!simulated::available()) return;
    for (const simulated::Race& race : simulated::races()) ADD_FAILURE() << race.message;
  }

  //! Waits for all devices and forgets their records, so that nothing before it can conflict with what
  //! follows.
  static void settle() {
    for (c10::DeviceIndex device = 0; device < at::accelerator::deviceCount(); ++device)
      at::accelerator::synchronizeDevice(device);
    simulated::clear_records();
  }

  //! Returns and forgets the races so far, as "operation after earlier operation".
  static std::vector<std::string> take_races() {
    std::vector<std::string> found;
    for (const simulated::Race& race : simulated::races())
      found.push_back(race.operation + " after " + race.earlier_operation);
    simulated::clear_records();
    return found;
  }
};

}  // namespace penstock::test
