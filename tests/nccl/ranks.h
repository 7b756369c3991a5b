// Ranks on devices of the fake CUDA runtime, over NCCL.
#pragma once

#include "nccl/host_kernels.h"
#include "support/process_ranks.h"

#include <penstock/comm/world.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

namespace penstock::test {

//! Runs ranks as processes that load the stand-ins for libcudart and libnccl.
inline RanksOutcome run_fake_cuda_ranks(const std::string& function, int ranks, RanksOptions options = {}) {
  options.environment["LD_PRELOAD"] = PENSTOCK_FAKE_CUDA_LIBRARIES;
  return run_process_ranks(function, ranks, options);
}

//! Joins the world of processes over NCCL, on a device per rank.
inline comm::World init_on_device(std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
  use_host_kernels();
  comm::InitOptions options;
  options.device = c10::kCUDA;
  options.timeout = timeout;
  comm::World world = comm::init(options);
  if (world.group().backend() != "nccl") throw std::logic_error("this should be NCCL");
  return world;
}

}  // namespace penstock::test
