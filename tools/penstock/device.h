// `--device`: what a run computes on.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace penstock::tool {

enum class DeviceChoice { Auto, Cpu, Cuda };

inline const std::vector<std::pair<std::string, DeviceChoice>> kDeviceWords{
    {"cpu", DeviceChoice::Cpu}, {"cuda", DeviceChoice::Cuda}, {"auto", DeviceChoice::Auto}};

//! Before ranks start: the device that `asked` stands for. UsageError for one that a run cannot use.
DeviceChoice settle_device(DeviceChoice asked);

}  // namespace penstock::tool
