// TCP functions for the monitor.
#include "comm/failure/sockets.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

namespace penstock::comm {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, std::uint16_t port, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_family = AF_UNSPEC;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw CommError("cannot resolve host " + host + ": " + gai_strerror(error));
  return {found, &freeaddrinfo};
}

Endpoint endpoint_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
    inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
    constexpr std::string_view mapped_prefix = "::ffff:";  // an IPv4 address on an IPv6 socket
    const std::string_view host(text.data());
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) && host.starts_with(mapped_prefix);
    return {std::string(mapped ? host.substr(mapped_prefix.size()) : host), ntohs(v6->sin6_port)};
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
  inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
  return {text.data(), ntohs(v4->sin_port)};
}

Endpoint local_endpoint(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return endpoint_of(address);
}

std::optional<Endpoint> peer_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return std::nullopt;
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return std::nullopt;
  return endpoint_of(address);
}

}  // namespace

std::string errno_text(int error) {
  return std::string(std::strerror(error)) +
         (error == EMFILE || error == ENFILE ? "; raise the limit, for example with `ulimit -n 4096`" : "");
}

std::pair<Fd, Fd> make_pipe(int flags) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | flags) != 0)
    throw CommError("cannot create a pipe: " + errno_text(errno));
  return {Fd(ends[0]), Fd(ends[1])};
}

void Fd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Endpoint Endpoint::parse(const std::string& text) {
  const auto bar = text.rfind('|');
  Endpoint endpoint{text.substr(0, bar)};
  const char* const last = text.data() + text.size();
  const auto [end, error] =
      std::from_chars(text.data() + (bar == std::string::npos ? text.size() : bar + 1), last, endpoint.port);
  if (error != std::errc{} || end != last)
    throw CommError("a rank published an invalid endpoint: " + quote(text, 200));
  return endpoint;
}

std::string address_toward(const std::string& host) {
  const AddressList addresses = resolve(host, 9, SOCK_DGRAM);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const Fd fd(socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // Connecting a datagram socket sends nothing; it only selects the route.
    if (fd && connect(fd.get(), address->ai_addr, address->ai_addrlen) == 0)
      return local_endpoint(fd.get()).host;
  }
  throw CommError("there is no route to " + host);
}

std::string interface_of(const std::string& address) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, &freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const int family = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    sockaddr_storage found{};
    std::memcpy(&found, entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (endpoint_of(found).host == address) return entry->ifa_name;
  }
  return "";
}

std::pair<Fd, Endpoint> listen_on(const std::string& address, std::uint16_t port) {
  constexpr int backlog = 1024;  // leaves room for real peers behind many foreign connections
  const AddressList addresses = resolve(address, port, SOCK_STREAM);
  Fd fd(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd && port != 0) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(fd.get(), backlog) != 0) {
    throw CommError("cannot listen on " + address + (port != 0 ? str_cat(" port ", port) : "") + ": " +
                    std::strerror(errno));
  }
  Endpoint endpoint = local_endpoint(fd.get());
  return {std::move(fd), std::move(endpoint)};
}

Connecting connect_to(const Endpoint& endpoint, std::chrono::milliseconds limit) {
  const AddressList addresses = resolve(endpoint.host, endpoint.port, SOCK_STREAM);
  Fd fd(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {{}, errno};
  if (connect(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return {{}, errno};
    pollfd waiting{fd.get(), POLLOUT, 0};
    if (poll(&waiting, 1, static_cast<int>(limit.count())) != 1) return {{}, ETIMEDOUT};
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return {{}, error};
  }
  return {std::move(fd)};
}

std::set<int> connections_to(const Endpoint& endpoint) {
  std::set<std::string> hosts;
  const AddressList addresses = resolve(endpoint.host, endpoint.port, SOCK_STREAM);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    sockaddr_storage storage{};
    std::memcpy(&storage, address->ai_addr, address->ai_addrlen);
    hosts.insert(endpoint_of(storage).host);
  }
  std::set<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    const auto peer = peer_of(fd);
    if (peer && peer->port == endpoint.port && hosts.contains(peer->host)) found.insert(fd);
  }
  return found;
}

void set_ack_timeout(const std::set<int>& sockets, std::chrono::milliseconds limit) {
  const auto set = [](int fd, int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof value);
  };
  for (const int fd : sockets) {
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count()));
    // Probes for the case that no sent data is waiting for an acknowledgement.
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  }
}

}  // namespace penstock::comm
