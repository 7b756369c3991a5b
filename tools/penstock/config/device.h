// `--device`: the device of the ranks.
#pragma once

#include <penstock/comm/launched_rank.h>

#include <c10/core/Device.h>

#include <string>
#include <utility>
#include <vector>

namespace penstock::tool {

enum class DeviceChoice { Auto, Cpu, Cuda };

inline const std::vector<std::pair<std::string, DeviceChoice>> kDeviceChoices{
    {"cpu", DeviceChoice::Cpu}, {"cuda", DeviceChoice::Cuda}, {"auto", DeviceChoice::Auto}};

inline constexpr const char* kDeviceHelp =
    "device of the ranks; auto: cuda if this machine has a CUDA device for each of its ranks, else cpu";

inline constexpr const char* kBackendHelp =
    "communication backend: gloo, shm (shared memory within a host, gloo between hosts), nccl, or auto "
    "(PENSTOCK_BACKEND if set, else nccl for CUDA devices and shm for CPUs)";

//! A choice other than Auto, with its reason.
struct ResolvedDevice {
  DeviceChoice choice = DeviceChoice::Cpu;
  std::string reason{};  //!< one line: `device: cpu, because …`
};

//! Resolves `requested` before ranks start. `local_ranks` is the number of ranks on this machine; each needs
//! a device of its own. Throws UsageError if they cannot run on the requested device.
ResolvedDevice resolve_device(DeviceChoice requested, int local_ranks);

//! Returns InitOptions::device for a resolved choice: the local rank becomes the index.
c10::Device device_of(DeviceChoice resolved);

//! Returns the number of ranks that the launcher started on this machine; if it does not say, at least the
//! number of those up to this rank.
int local_ranks(const comm::LaunchedRank& found);

//! Resolves the backend `auto` for the device: PENSTOCK_BACKEND if set, else nccl for cuda if libtorch has
//! it, else shm. Throws UsageError for a backend that is unknown, or that libtorch or the device does not
//! support.
std::string resolve_backend(const std::string& requested, DeviceChoice device);

}  // namespace penstock::tool
