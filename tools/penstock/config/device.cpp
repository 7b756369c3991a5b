// Resolves `--device`. Runs support only CPUs so far.
#include "config/device.h"

#include <penstock/base/error.h>

#include <ATen/detail/CUDAHooksInterface.h>

namespace penstock::tool {

DeviceChoice resolve_device(DeviceChoice requested) {
  if (requested != DeviceChoice::Cuda) return DeviceChoice::Cpu;
  const bool present = at::detail::getCUDAHooks().hasCUDA();
  throw UsageError(present ? "--device cuda: this command supports only CPUs so far"
                           : "--device cuda: this libtorch has no CUDA support, or there is no CUDA device",
                   {}, "use --device cpu or --device auto");
}

}  // namespace penstock::tool
