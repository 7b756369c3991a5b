// The transports other than Gloo. Each is compiled from backends/<name>_present.cpp where the libtorch at hand has it,
// else from backends/<name>_absent.cpp, whose factory throws an error that says so.
#pragma once

#include "comm/domain.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

namespace penstock {

std::shared_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                               std::chrono::milliseconds join_timeout);
std::shared_ptr<Transport> make_mpi_transport();
std::shared_ptr<Transport> make_ucc_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                              std::chrono::milliseconds join_timeout);
bool nccl_present();
bool mpi_present();
bool ucc_present();

}  // namespace penstock
