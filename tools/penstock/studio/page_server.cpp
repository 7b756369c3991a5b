// A single-threaded server: one poll over the listener and all connections.
#include "studio/page_server.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

namespace penstock::tool {
namespace {

constexpr int kDefaultPort = 8765;
constexpr std::size_t kMaxConnections = 64;

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what) {
  throw Error(what + ": " + std::strerror(errno));
}

//! Returns an invalid descriptor if the port is in use.
Descriptor listen_on(int port) {
  Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener.number() < 0) fail("cannot create a socket");
  const int yes = 1;  // a port whose last connections are still closing counts as free
  setsockopt(listener.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound =
      bind(listener.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      listen(listener.number(), SOMAXCONN) == 0;
  if (bound) return listener;
  if (errno == EADDRINUSE) return Descriptor();
  fail(str_cat("cannot listen on port ", port));
}

int port_of(const Descriptor& listener) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (getsockname(listener.number(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    fail("cannot find the port");
  return ntohs(address.sin_port);
}

//! One request and its response.
class Connection {
 public:
  explicit Connection(Descriptor socket)
      : socket_(std::move(socket)), deadline_(Clock::now() + kConnectionTimeout) {}

  pollfd wanted() const { return {socket_.number(), static_cast<short>(sending() ? POLLOUT : POLLIN), 0}; }
  Clock::time_point deadline() const { return deadline_; }

  //! Continues after poll reported an event. Returns false once the connection is finished.
  bool advance(const FindContent& find, int port) {
    if (sending()) return send_rest();
    return response_.empty() ? receive(find, port) : discard();
  }

 private:
  bool sending() const { return sent_ < response_.size(); }

  bool receive(const FindContent& find, int port) {
    std::array<char, 4096> buffer{};
    const ssize_t count = recv(socket_.number(), buffer.data(), buffer.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    request_.append(buffer.data(), static_cast<std::size_t>(count));
    if (is_complete(request_)) {
      response_ = respond(request_, find, port);
    } else if (request_.size() > kMaxRequestBytes) {
      response_ = refuse_large_request();
    }
    return response_.empty() || send_rest();
  }

  bool send_rest() {
    while (sent_ < response_.size()) {
      const ssize_t count =
          send(socket_.number(), response_.data() + sent_, response_.size() - sent_, MSG_NOSIGNAL);
      if (count < 0) return errno == EAGAIN || errno == EINTR;
      sent_ += static_cast<std::size_t>(count);
    }
    shutdown(socket_.number(), SHUT_WR);
    return true;
  }

  //! Reads until the client closes. Closing earlier, with unread data, would reset the connection, and the
  //! client could lose the response.
  bool discard() {
    std::array<char, 4096> buffer{};
    const ssize_t count = recv(socket_.number(), buffer.data(), buffer.size(), 0);
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
  }

  Descriptor socket_;
  Clock::time_point deadline_;
  std::string request_, response_;
  std::size_t sent_ = 0;
};

//! Milliseconds until the first deadline; -1 (no limit) without connections.
int time_left(const std::vector<Connection>& connections) {
  if (connections.empty()) return -1;
  const auto first =
      std::min_element(connections.begin(), connections.end(),
                       [](const auto& a, const auto& b) { return a.deadline() < b.deadline(); });
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(first->deadline() - Clock::now());
  return static_cast<int>(std::max<std::chrono::milliseconds::rep>(0, left.count()));
}

void accept_new(const Descriptor& listener, std::vector<Connection>& connections) {
  while (connections.size() < kMaxConnections) {
    const int accepted = accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted < 0) return;
    connections.emplace_back(Descriptor(accepted));
  }
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}
Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

PageServer::PageServer(std::string page, std::optional<int> port)
    : PageServer(
          [page = std::move(page)](std::string_view target) -> std::optional<Content> {
            const std::string_view path = path_of(target);
            if (path != "/" && path != "/index.html") return std::nullopt;
            return Content{"text/html", page};
          },
          port) {}

PageServer::PageServer(FindContent find, std::optional<int> port) : find_(std::move(find)) {
  listener_ = listen_on(port.value_or(kDefaultPort));
  if (listener_.number() < 0 && !port) listener_ = listen_on(0);
  if (listener_.number() < 0)
    throw UsageError(str_cat("port ", *port, " is in use"), {}, "use --port 0 for a free port");
  port_ = port_of(listener_);
}

std::string PageServer::address() const {
  return str_cat("http://127.0.0.1:", port_, "/");
}

void PageServer::serve(const Descriptor& stop) {
  std::vector<Connection> connections;
  while (true) {
    std::vector<pollfd> polled{{stop.number(), POLLIN, 0}};
    // A full server lets new connections wait in the queue of the system.
    polled.push_back({connections.size() < kMaxConnections ? listener_.number() : -1, POLLIN, 0});
    for (const Connection& connection : connections) polled.push_back(connection.wanted());
    if (poll(polled.data(), polled.size(), time_left(connections)) < 0 && errno != EINTR) fail("poll failed");
    if (polled[0].revents != 0) return;
    std::vector<Connection> open;
    for (std::size_t i = 0; i < connections.size(); ++i) {
      const bool ready = polled[i + 2].revents != 0;
      const bool alive =
          ready ? connections[i].advance(find_, port_) : connections[i].deadline() > Clock::now();
      if (alive) open.push_back(std::move(connections[i]));
    }
    connections = std::move(open);
    if (polled[1].revents != 0) accept_new(listener_, connections);
  }
}

Descriptor stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0) fail("cannot block signals");
  Descriptor descriptor(signalfd(-1, &signals, SFD_CLOEXEC));
  if (descriptor.number() < 0) fail("cannot wait for signals");
  return descriptor;
}

}  // namespace penstock::tool
