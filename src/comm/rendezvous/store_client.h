// Connections to the store of the job, a c10d TCPStore. The launcher hosts it, or rank 0 if the launcher does
// not.
#pragma once

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace penstock::comm {

struct StoreOptions {
  std::string host;
  std::uint16_t port = 0;  //!< for the host: 0 selects any free port
  bool hosts = false;      //!< this process hosts the store and is a client of it
  bool only_here = false;  //!< for the host: listen only on the address of `host`, not on all addresses
  bool shared = false;     //!< for the host: several clients of this process may share it
  std::chrono::milliseconds timeout{0};
};

//! Opens a client whose connection breaks when the network fails. Throws the errors of libtorch, or CommError
//! if the process has too few file descriptors.
c10::intrusive_ptr<c10d::TCPStore> open_store(const StoreOptions& options);

//! Returns whether a host is a loopback address: `localhost`, 127.x.y.z or ::1.
bool is_loopback(const std::string& host);

}  // namespace penstock::comm
