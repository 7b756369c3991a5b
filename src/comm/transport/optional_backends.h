// The transports other than Gloo. Each is compiled from <name>_present.cpp if libtorch was built with it,
// else from the stub <name>_absent.cpp, whose factory throws CommError.
#pragma once

#include "comm/world/generation.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

namespace penstock::comm {

std::shared_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                               std::chrono::milliseconds join_timeout);
bool nccl_present();

}  // namespace penstock::comm
