// The choice of a transport and of a device, without devices.
#include "comm/failure/sockets.h"
#include "comm/transport/optional_backends.h"
#include "comm/world/rank_device.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/comm/world.h>

#include <gtest/gtest.h>

namespace penstock::comm {
namespace {

TEST(CommBackendChoice, IsSharedMemoryForTheCpu) {
  const BackendChoice choice = choose_backend(BackendKind::Auto, c10::kCPU);
  EXPECT_EQ(choice.kind, BackendKind::Shm);
  EXPECT_EQ(choice.reason, "the ranks are on the CPU");
}

TEST(CommBackendChoice, IsNcclForCudaIfBuiltIn) {
  const BackendChoice choice = choose_backend(BackendKind::Auto, c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(choice.kind, nccl_present() ? BackendKind::Nccl : BackendKind::Shm);
  EXPECT_EQ(choice.reason,
            nccl_present() ? "the ranks are on CUDA devices" : "penstock was built without NCCL");
}

TEST(CommBackendChoice, KeepsWhatWasRequested) {
  EXPECT_EQ(choose_backend(BackendKind::Gloo, c10::Device(c10::kCUDA, 0)).kind, BackendKind::Gloo);
  EXPECT_EQ(choose_backend(BackendKind::Nccl, c10::Device(c10::kCUDA, 0)).kind, BackendKind::Nccl);
}

TEST(CommBackendChoice, RefusesNcclOnTheCpu) {
  if (nccl_present()) {
    EXPECT_ERROR(choose_backend(BackendKind::Nccl, c10::kCPU), UsageError, "needs ranks on CUDA devices");
  } else {  // the transport itself refuses, with the reason why there is no NCCL
    EXPECT_EQ(choose_backend(BackendKind::Nccl, c10::kCPU).kind, BackendKind::Nccl);
  }
}

TEST(CommRankDevice, RefusesDevicesThatLibtorchDoesNotSupport) {
  EXPECT_EQ(resolve_device(c10::kCPU, 5), c10::Device(c10::kCPU));
  EXPECT_ERROR(resolve_device(c10::kXPU, 0), UsageError, "this libtorch has no support for the device xpu");
}

TEST(CommSockets, FindInterfaceOfAddress) {
  EXPECT_EQ(interface_of("127.0.0.1"), "lo");
  EXPECT_EQ(interface_of("198.51.100.1"), "");  // reserved for documentation
}

}  // namespace
}  // namespace penstock::comm
