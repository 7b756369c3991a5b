// Messages of the fake NCCL.
#include "communicator.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::chrono::seconds kConnectLimit{60};
constexpr int kRetry = 5;  // milliseconds

struct Address {
  // In the abstract namespace: it leaves no file behind.
  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t length = 0;
};

int make_socket() {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

}  // namespace

bool ncclComm::accept_peer(int listener) {
  const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  int peer = -1;
  if (socket < 0 || ::recv(socket, &peer, sizeof peer, MSG_WAITALL) != sizeof peer) return false;
  in_[static_cast<std::size_t>(peer)] = socket;
  return true;
}

// Does nothing if the peer does not listen yet.
bool ncclComm::try_to_reach(int peer) {
  const Address address(id_ + "-" + std::to_string(peer));
  const int socket = make_socket();
  if (::connect(socket, address.get(), address.length) != 0) {
    close(socket);
    return false;
  }
  out_[static_cast<std::size_t>(peer)] = socket;
  return ::send(socket, &rank_, sizeof rank_, MSG_NOSIGNAL) == sizeof rank_;
}

bool ncclComm::connect() {
  out_.assign(static_cast<std::size_t>(size_), -1);
  in_ = out_;
  const int listener = make_socket();
  const Address own(id_ + "-" + std::to_string(rank_));
  if (bind(listener, own.get(), own.length) != 0 || listen(listener, size_) != 0) return false;
  const auto limit = std::chrono::steady_clock::now() + kConnectLimit;
  int accepted = 1, reached = 1;
  while ((accepted < size_ || reached < size_) && std::chrono::steady_clock::now() < limit) {
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_ && out_[static_cast<std::size_t>(peer)] < 0 && try_to_reach(peer)) ++reached;
    pollfd waiting{listener, POLLIN, 0};
    if (accepted < size_ || reached < size_) poll(&waiting, 1, kRetry);
    if ((waiting.revents & POLLIN) != 0 && accept_peer(listener)) ++accepted;
  }
  close(listener);
  return accepted == size_ && reached == size_;
}

bool ncclComm::hang(ncclResult_t error) {
  if (error != ncclRemoteError || std::getenv("FAKE_NCCL_SILENT") == nullptr) error_ = error;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return aborted_.load(); });
  return false;
}

bool ncclComm::transfer(int socket, void* data, std::size_t size, bool writes) {
  auto* position = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t count =
        writes ? ::send(socket, position, size, MSG_NOSIGNAL) : ::recv(socket, position, size, 0);
    if (count <= 0) return hang(ncclRemoteError);
    position += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

bool ncclComm::send(int to, const void* data, std::size_t size, std::uint64_t operation) {
  if (to == rank_) {
    std::unique_lock lock(mutex_);
    own_data_ = data;
    own_size_ = size;
    changed_.notify_all();
    changed_.wait(lock, [this] { return own_data_ == nullptr || aborted_; });
    return !aborted_;
  }
  const int socket = out_[static_cast<std::size_t>(to)];
  Header header{operation, size};
  char started = 0;
  return transfer(socket, &header, sizeof header, true) && transfer(socket, &started, 1, false) &&
         transfer(socket, const_cast<void*>(data), size, true);
}

bool ncclComm::receive(int from, void* data, std::size_t size, std::uint64_t operation) {
  if (from == rank_) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return own_data_ != nullptr || aborted_; });
    if (aborted_) return false;
    std::memcpy(data, own_data_, std::min(size, own_size_));
    own_data_ = nullptr;
    changed_.notify_all();
    return true;
  }
  const int socket = in_[static_cast<std::size_t>(from)];
  Header header;
  char started = 1;
  if (!transfer(socket, &header, sizeof header, false)) return false;
  if (header.operation != operation || header.size != size) {
    std::fprintf(
        stderr,
        "fake NCCL: rank %d expects operation %lu of %zu bytes from rank %d, which runs operation %lu of "
        "%lu bytes: NCCL would hang or corrupt memory\n",
        rank_, operation, size, from, header.operation, header.size);
    return hang(ncclInvalidUsage);
  }
  return transfer(socket, &started, 1, true) && transfer(socket, data, size, false);
}

// The sockets stay open: an operation may still use them.
void ncclComm::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
  for (const auto& sockets : {out_, in_})
    for (const int socket : sockets)
      if (socket >= 0) shutdown(socket, SHUT_RDWR);
}
