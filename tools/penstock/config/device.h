// `--device`: the device of a run.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace penstock::tool {

enum class DeviceChoice { Auto, Cpu, Cuda };

inline const std::vector<std::pair<std::string, DeviceChoice>> kDeviceChoices{
    {"cpu", DeviceChoice::Cpu}, {"cuda", DeviceChoice::Cuda}, {"auto", DeviceChoice::Auto}};

//! Resolves `requested` to a device, before ranks start. Throws UsageError if a run cannot use that device.
DeviceChoice resolve_device(DeviceChoice requested);

}  // namespace penstock::tool
