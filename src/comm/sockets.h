// The little of TCP that the monitor needs: a listener, a connection with a bounded connect, which of our addresses
// faces another host, and an end to waiting for one that cannot be reached any more.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
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
  //! Gives the descriptor up without closing it.
  int release() { return std::exchange(fd_, -1); }
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

//! Listens on that port of `address`, 0 for any free one; the endpoint says which.
std::pair<Fd, Endpoint> listen_on(const std::string& address, std::uint16_t port = 0);

//! A connection, or why there is none: an errno (ETIMEDOUT after `limit`).
struct Connecting {
  Fd connection;
  int error = 0;
};
Connecting connect_to(const Endpoint& endpoint, std::chrono::milliseconds limit);

//! How long the connection to a store may be without an answer of the network. Shorter than the heartbeat limit, so that
//! both sides of a cut know at about the same time.
constexpr std::chrono::milliseconds kCutLimit{12000};

//! The sockets of this process that are connected to one of the endpoint's addresses.
std::set<int> connections_to(const Endpoint& endpoint);

//! These connections break when what was sent has not been acknowledged for `limit`: without it a wait for an answer
//! over a network that is cut lasts a quarter of an hour.
void break_when_cut(const std::set<int>& sockets, std::chrono::milliseconds limit);

}  // namespace penstock
