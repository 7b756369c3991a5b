// Groups over Gloo, whose members find each other through a store.
#pragma once

#include "comm/world/generation.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

namespace penstock::comm {

//! `address` is the address of this machine as the other ranks reach it. If GLOO_SOCKET_IFNAME is set, Gloo
//! uses that interface instead.
std::shared_ptr<Transport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                               std::string address, std::chrono::milliseconds join_timeout);

}  // namespace penstock::comm
