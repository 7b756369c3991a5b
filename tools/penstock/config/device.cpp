// Resolves `--device`, and `--backend`, which depends on it.
#include "config/device.h"

#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/comm/world.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace penstock::tool {
namespace {

bool libtorch_has_cuda() {
  return c10::impl::hasDeviceGuardImpl(c10::kCUDA);
}

int cuda_devices() {
  return libtorch_has_cuda() ? c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount() : 0;
}

// Why these ranks cannot run on CUDA devices; nullopt if they can.
std::optional<std::string> obstacle(int devices, int ranks) {
  if (!libtorch_has_cuda()) return "this libtorch has no CUDA support";
  if (devices == 0) return "this machine has no CUDA device that libtorch can use";
  if (devices >= ranks) return std::nullopt;
  return str_cat(counted(ranks, "rank"), " need a CUDA device each, and this machine has ", devices);
}

std::string hint_for(int devices) {
  if (!libtorch_has_cuda())
    return "use --device cpu or --device auto, or build with a libtorch that supports CUDA";
  if (devices == 0)
    return "use --device cpu or --device auto, or check the driver: `penstock doctor` shows what was found";
  return str_cat("use --device cpu, or at most ", counted(devices, "rank"), " on this machine");
}

// The leading number of a variable, as in `4(x2),3` of Slurm.
std::optional<int> number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  const std::string_view view(text);
  int number = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), number);
  return error == std::errc() && number > 0 ? std::optional(number) : std::nullopt;
}

}  // namespace

ResolvedDevice resolve_device(DeviceChoice requested, int local_ranks) {
  if (requested == DeviceChoice::Cpu) return {DeviceChoice::Cpu, "device: cpu, as requested"};
  const int devices = cuda_devices();
  const std::optional<std::string> problem = obstacle(devices, local_ranks);
  if (requested == DeviceChoice::Cuda) {
    if (problem) throw UsageError("--device cuda: " + *problem, {}, hint_for(devices));
    return {DeviceChoice::Cuda, "device: cuda, as requested"};
  }
  if (problem) return {DeviceChoice::Cpu, "device: cpu, because " + *problem};
  return {DeviceChoice::Cuda,
          str_cat("device: cuda, because this machine has ", counted(devices, "CUDA device"), " for ",
                  counted(local_ranks, "rank"))};
}

c10::Device device_of(DeviceChoice resolved) {
  return resolved == DeviceChoice::Cuda ? c10::kCUDA : c10::kCPU;
}

int local_ranks(const comm::LaunchedRank& found) {
  const int least = found.local_rank + 1;
  // Slurm gives only the count of the first nodes; every other launcher that of this machine.
  for (const char* const variable :
       {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"})
    if (const std::optional<int> number = number_in(variable)) return std::max(*number, least);
  return least;
}

std::string resolve_backend(const std::string& requested, DeviceChoice device) {
  comm::BackendKind kind = comm::parse_backend(requested);
  if (const char* const name = std::getenv("PENSTOCK_BACKEND"); name && kind == comm::BackendKind::Auto)
    kind = comm::parse_backend(name);
  if (!backend_available(kind))
    throw UsageError(str_cat("this libtorch does not support the backend ", to_string(kind)), {},
                     "use --backend gloo or --backend auto");
  if (kind == comm::BackendKind::Nccl && device != DeviceChoice::Cuda)
    throw UsageError("the backend nccl connects CUDA devices, but the ranks are on the CPU", {},
                     "use --device cuda, --backend gloo or --backend auto");
  return std::string(to_string(choose_backend(kind, device_of(device)).kind));
}

}  // namespace penstock::tool
