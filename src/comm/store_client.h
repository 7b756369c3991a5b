// Connections to the job's store, c10d's TCPStore: hosted by the launcher, or by rank 0 where another
// launcher does not.
#pragma once

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace penstock {

struct StoreOptions {
  std::string host;
  std::uint16_t port = 0;  //!< 0, for a host: any free one
  bool hosts = false;      //!< this process is the store's host, and a client of it
  bool only_here =
      false;  //!< for a host: listen on the address of `host` alone, not on every one of the machine
  bool shared = false;  //!< for a host: several clients of this process may host it together
  std::chrono::milliseconds timeout{0};
};

//! A client whose connection breaks when the network is cut. What goes wrong is thrown as libtorch throws it,
//! or as a CommError that says that the process has too few file descriptors.
c10::intrusive_ptr<c10d::TCPStore> open_store(const StoreOptions& options);

//! Whether a host is only reached from this machine: `localhost`, 127.x.y.z or ::1.
bool is_loopback(const std::string& host);

}  // namespace penstock
