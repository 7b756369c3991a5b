// The transports other than Gloo. Each is compiled from <name>_present.cpp if libtorch was built with it,
// else from the stub <name>_absent.cpp, whose factory throws CommError.
#pragma once

#include "comm/world/generation.h"

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace penstock::comm {

//! Groups of ranks on CUDA devices. CPU tensors go over Gloo, which listens on `address`.
std::shared_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                               const std::string& address, c10::Device device,
                                               std::chrono::milliseconds join_timeout);
bool nccl_present();
//! The version of the loaded NCCL, such as 2.29.7.
std::optional<std::string> nccl_version();

}  // namespace penstock::comm
