// Groups over Gloo, found through a store.
#pragma once

#include "comm/domain.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

namespace penstock {

//! `address` is this machine's, towards the other ranks; GLOO_SOCKET_IFNAME, if set, names the interface instead.
std::shared_ptr<Transport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                               std::string address, std::chrono::milliseconds join_timeout);

}  // namespace penstock
