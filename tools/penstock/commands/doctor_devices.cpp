// The part of `penstock doctor` about libtorch and devices. Reports what is loaded and found, not what was
// expected at build time.
#include "base/text.h"
#include "comm/world/rank_device.h"
#include "commands/cuda_driver.h"
#include "commands/doctor_findings.h"

#include <penstock/base/error.h>
#include <penstock/comm/launched_rank.h>
#include <penstock/comm/world.h>
#include <penstock/torch_version.h>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <optional>

namespace penstock::tool {
namespace {

bool has_cuda() {
  return at::detail::getCUDAHooks().hasCUDA() || c10::impl::hasDeviceGuardImpl(c10::kCUDA);
}

// The kernel module of the driver says its version here. libtorch's own message does not name it.
Finding look_at_driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  if (std::getline(file, line)) return {"driver", CheckVerdict::Fine, line};
  const bool needed = at::detail::getCUDAHooks().hasCUDA();
  return {"driver", needed ? CheckVerdict::Note : CheckVerdict::Fine,
          std::string("no NVIDIA driver is loaded") +
              (needed ? "; this CUDA build of libtorch runs on the CPU" : "")};
}

std::string version_text(long cuda) {
  return str_cat(cuda / 1000, ".", cuda % 1000 / 10);
}

Finding look_at_cuda() {
  if (!at::detail::getCUDAHooks().hasCUDART())
    return {"cuda", CheckVerdict::Fine, "this libtorch is a CPU build"};
  return {"cuda", CheckVerdict::Fine,
          "libtorch was built for CUDA " + version_text(at::detail::getCUDAHooks().versionCUDART())};
}

Finding look_at_nccl() {
  if (const auto version = comm::backend_version(comm::BackendKind::Nccl))
    return {"nccl", CheckVerdict::Fine, *version + " is loaded"};
  const bool expected = at::detail::getCUDAHooks().hasCUDART();
  return {
      "nccl", expected ? CheckVerdict::Note : CheckVerdict::Fine,
      std::string("not built in") + (expected ? ": build penstock with the headers of CUDA and NCCL" : "")};
}

Finding look_at_device(c10::DeviceIndex index) {
  const std::string name = c10::Device(c10::kCUDA, index).str();
  try {
    at::globalContext().lazyInitDevice(c10::kCUDA);
    const auto [available, total] = at::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(index);
    const std::optional<std::string> model = device_name(index);
    return {
        name, CheckVerdict::Fine,
        str_cat(model ? *model + ", " : "", format_bytes(available), " of ", format_bytes(total), " free")};
  } catch (const std::exception& e) {
    return {name, CheckVerdict::Bad, e.what()};
  }
}

// Without peer access, copies between devices go through host memory. Nullopt if the driver does not tell.
std::optional<Finding> look_at_peers(int count) {
  std::vector<std::string> separate;
  for (int from = 0; from < count; ++from) {
    for (int to = from + 1; to < count; ++to) {
      const std::optional<bool> forth = can_access_peer(from, to), back = can_access_peer(to, from);
      if (!forth || !back) return std::nullopt;
      if (!*forth || !*back) separate.push_back(str_cat("cuda:", from, " and cuda:", to));
    }
  }
  if (separate.empty()) return Finding{"peer access", CheckVerdict::Fine, "between all devices"};
  return Finding{"peer access", CheckVerdict::Note,
                 "not between " + join(separate, ", ") + "; copies between them go through host memory"};
}

// Which device `init` gives to the local ranks, or to this process if a launcher started it.
Finding look_at_rank_devices(int count) {
  constexpr const char* name = "rank devices";
  try {
    const comm::LaunchedRank found = comm::detect_rank();
    if (found.launcher == comm::LauncherKind::None)
      return {name, CheckVerdict::Fine,
              count == 1 ? "local rank 0 computes on cuda:0"
                         : str_cat("local ranks 0 to ", count - 1, " compute on cuda:0 to cuda:", count - 1)};
    const c10::Device device = comm::resolve_device(c10::kCUDA, found.local_rank);
    return {name, CheckVerdict::Fine,
            str_cat("this process is local rank ", found.local_rank, " and computes on ", device.str())};
  } catch (const UsageError& e) {
    return {name, CheckVerdict::Bad, e.message() + "; " + e.hint()};
  }
}

Finding look_at_backends() {
  const c10::Device device = usable_devices() > 0 ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  const char* const asked = std::getenv("PENSTOCK_BACKEND");
  try {
    const comm::BackendKind requested =
        asked == nullptr ? comm::BackendKind::Auto : comm::parse_backend(asked);
    const comm::BackendChoice choice = choose_backend(requested, device);
    const std::string names =
        comm::backend_available(comm::BackendKind::Nccl) ? "gloo, shm, nccl" : "gloo, shm";
    const std::string reason = asked == nullptr ? choice.reason : str_cat("PENSTOCK_BACKEND is ", asked);
    return {"backends", CheckVerdict::Fine,
            str_cat(names, "; auto means ", to_string(choice.kind), ", because ", reason)};
  } catch (const UsageError& e) {
    return {"backends", CheckVerdict::Bad, "PENSTOCK_BACKEND: " + e.message() + "; " + e.hint()};
  }
}

}  // namespace

const char* verdict_name(CheckVerdict verdict) {
  switch (verdict) {
    case CheckVerdict::Fine:
      return "ok";
    case CheckVerdict::Note:
      return "note";
    case CheckVerdict::Bad:
      return "BAD";
  }
  return "?";
}

Finding look_at_libtorch() {
  Dl_info info{};
  const auto address = reinterpret_cast<const void*>(&at::get_num_threads);
  const std::string where = dladdr(address, &info) != 0 ? info.dli_fname : "an unknown location";
  const bool right = torch_version().starts_with(PENSTOCK_BUILT_WITH_TORCH);
  return {"libtorch", right ? CheckVerdict::Fine : CheckVerdict::Bad,
          str_cat(torch_version(), " in ", where,
                  " (built with " PENSTOCK_BUILT_WITH_TORCH
                  "; penstock can be built with " PENSTOCK_TORCH_VERSIONS ")")};
}

int usable_devices() {
  if (!has_cuda() || !c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return 0;
  return c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
}

std::vector<Finding> look_at_devices() {
  const int count = usable_devices();
  std::vector<Finding> findings{look_at_driver(), look_at_cuda(), look_at_nccl()};
  findings.push_back({"devices", CheckVerdict::Fine,
                      count == 0 ? "no CUDA device; ranks run on the CPU" : counted(count, "CUDA device")});
  for (int index = 0; index < count; ++index)
    findings.push_back(look_at_device(static_cast<c10::DeviceIndex>(index)));
  if (count > 1) {
    if (std::optional<Finding> peers = look_at_peers(count)) findings.push_back(*std::move(peers));
  }
  if (count > 0) findings.push_back(look_at_rank_devices(count));
  findings.push_back(look_at_backends());
  return findings;
}

}  // namespace penstock::tool
