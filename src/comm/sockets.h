// The little of TCP that the monitor needs: a listener, a connection with a bounded connect, and which of our addresses
// faces another host.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace penstock {

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
  void reset();

 private:
  int fd_ = -1;
};

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  std::string text() const { return host + "|" + std::to_string(port); }
  static Endpoint parse(const std::string& text);
};

//! The address of this machine that packets to `host` leave from; CommError if the name does not resolve.
std::string address_towards(const std::string& host);

//! Listens on a free port of `address`; the endpoint says which.
std::pair<Fd, Endpoint> listen_on(const std::string& address);

//! Connects, or gives up after `limit` (an empty Fd).
Fd connect_to(const Endpoint& endpoint, std::chrono::milliseconds limit);

}  // namespace penstock
