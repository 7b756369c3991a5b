// The names of the transports, and the choice of one.
#include "base/text.h"
#include "comm/transport/optional_backends.h"

#include <penstock/base/error.h>
#include <penstock/comm/world.h>

#include <array>
#include <utility>
#include <vector>

namespace penstock::comm {
namespace {

constexpr std::array<std::pair<std::string_view, BackendKind>, 4> kBackends{{{"auto", BackendKind::Auto},
                                                                             {"gloo", BackendKind::Gloo},
                                                                             {"shm", BackendKind::Shm},
                                                                             {"nccl", BackendKind::Nccl}}};

}  // namespace

BackendKind parse_backend(std::string_view name) {
  std::vector<std::string> names;
  const std::string lower = to_lower(name);
  for (const auto& [known, kind] : kBackends) {
    if (lower == known) return kind;
    names.emplace_back(known);
  }
  if (lower == "mpi" || lower == "ucc")
    throw UsageError("the backend " + quote(name) + " is not supported", {},
                     "use gloo, also for ranks that mpirun starts; a process group that the program created "
                     "can be used through adopt_group");
  throw UsageError("unknown backend " + quote(name), {}, "valid backends are " + join(names, ", "));
}

std::string_view to_string(BackendKind kind) {
  for (const auto& [name, known] : kBackends) {
    if (kind == known) return name;
  }
  return "?";
}

bool backend_available(BackendKind kind) {
  switch (kind) {
    case BackendKind::Auto:
    case BackendKind::Gloo:
    case BackendKind::Shm:
      return true;
    case BackendKind::Nccl:
      return nccl_present();
  }
  return false;
}

std::optional<std::string> backend_version(BackendKind kind) {
  return kind == BackendKind::Nccl ? nccl_version() : std::nullopt;
}

BackendChoice choose_backend(BackendKind requested, c10::Device device) {
  if (requested == BackendKind::Gloo || requested == BackendKind::Shm) return {requested, "it was requested"};
  if (requested == BackendKind::Nccl) {
    if (device.is_cuda() || !nccl_present()) return {BackendKind::Nccl, "it was requested"};
    throw UsageError("the backend nccl needs ranks on CUDA devices, but the device is " + device.str(), {},
                     "set `device` to cuda, or `backend` to gloo");
  }
  if (!device.is_cuda()) return {BackendKind::Shm, "the ranks are on the CPU"};
  if (!nccl_present()) return {BackendKind::Shm, "penstock was built without NCCL"};
  return {BackendKind::Nccl, "the ranks are on CUDA devices"};
}

}  // namespace penstock::comm
