// Chooses the device of a rank and makes it current.
#include "comm/world/rank_device.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <c10/core/DeviceGuard.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace penstock::comm {

int device_of_rank(int local_rank, int count, const char* visible) {
  const std::string_view devices = visible == nullptr ? "" : visible;
  const bool own = count == 1 && !devices.empty() && devices.find(',') == std::string_view::npos;
  return own ? 0 : local_rank;
}

c10::Device resolve_device(c10::Device requested, int local_rank) {
  if (requested.is_cpu()) return c10::Device(c10::kCPU);
  const std::string type = c10::DeviceTypeName(requested.type(), true);
  if (!c10::impl::hasDeviceGuardImpl(requested.type()))
    throw UsageError(str_cat("this libtorch has no support for the device ", requested.str()), {},
                     "use the device cpu, or build with a libtorch that supports " + type);
  const int count = c10::impl::getDeviceGuardImpl(requested.type())->deviceCount();
  if (count == 0)
    throw UsageError(str_cat("this machine has no ", type, " device that libtorch can use"), {},
                     "use the device cpu, or check the driver: `penstock doctor` shows what was found");
  const char* const visible = requested.is_cuda() ? std::getenv("CUDA_VISIBLE_DEVICES") : nullptr;
  const int index = requested.has_index() ? requested.index() : device_of_rank(local_rank, count, visible);
  if (index < count) return {requested.type(), static_cast<c10::DeviceIndex>(index)};
  const std::string devices = str_cat(count, " ", type, count == 1 ? " device" : " devices");
  if (requested.has_index())
    throw UsageError(str_cat("there is no device ", requested.str(), ": this machine has ", devices), {},
                     str_cat("use an index from 0 to ", count - 1));
  throw UsageError(str_cat("local rank ", local_rank, " has no device: this machine has ", devices), {},
                   str_cat("start at most ", count, count == 1 ? " rank" : " ranks", " on this machine"));
}

void set_current_device(c10::Device device) {
  if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
}

}  // namespace penstock::comm
