// What libtorch does not tell about CUDA devices, from NVIDIA's driver library, if this machine has it.
#pragma once

#include <optional>
#include <string>

namespace penstock::tool {

//! The name of a device. The index counts as in libtorch; nullopt if the driver does not answer.
std::optional<std::string> device_name(int index);

//! Whether one device can access the memory of another one; nullopt if the driver does not answer.
std::optional<bool> can_access_peer(int from, int to);

}  // namespace penstock::tool
