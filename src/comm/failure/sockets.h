// File descriptors, pipes, and TCP functions for the monitor: listen, connect with a timeout, find the local
// address toward another host, and break connections to hosts that can no longer be reached.
#pragma once

#include "base/text.h"

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

namespace penstock::comm {

//! Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  //! Returns the descriptor and gives up ownership without closing it.
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

//! The text of an errno value. If there are no descriptors left, it says how to raise the limit.
std::string errno_text(int error);
//! Creates a pipe: its read end and its write end. `flags` are those of pipe2, in addition to O_CLOEXEC.
//! Throws CommError.
std::pair<Fd, Fd> make_pipe(int flags = 0);

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  std::string text() const { return str_cat(host, "|", port); }
  static Endpoint parse(const std::string& text);
};

//! Returns the local address from which packets to `host` are sent. Throws CommError if the name does not
//! resolve.
std::string address_toward(const std::string& host);

//! Returns the name of the network interface that has the address, or an empty string.
std::string interface_of(const std::string& address);

//! Listens on `address` and `port`, 0 for any free port. The returned endpoint has the actual port.
std::pair<Fd, Endpoint> listen_on(const std::string& address, std::uint16_t port = 0);

//! A connection, or the errno of the failed attempt (ETIMEDOUT after `limit`).
struct Connecting {
  Fd connection;
  int error = 0;
};
Connecting connect_to(const Endpoint& endpoint, std::chrono::milliseconds limit);

//! How long data sent to a store may stay unacknowledged. Shorter than the heartbeat limit, so that both
//! sides of a network failure detect it at about the same time.
constexpr std::chrono::milliseconds kAckTimeout{12000};

//! Returns the sockets of this process that are connected to one of the addresses of the endpoint.
std::set<int> connections_to(const Endpoint& endpoint);

//! Makes the connections break when sent data stays unacknowledged for `limit`. By default, a wait for an
//! answer over a broken network takes 15 minutes to fail.
void set_ack_timeout(const std::set<int>& sockets, std::chrono::milliseconds limit);

}  // namespace penstock::comm
