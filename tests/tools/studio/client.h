// A client for tests of HTTP servers on the loopback interface.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace penstock::test {

//! A connection to 127.0.0.1, with a timeout of 60 s.
class Client {
 public:
  explicit Client(int port, const char* host = "127.0.0.1") : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    inet_pton(AF_INET, host, &address.sin_addr);
    const timeval timeout{60, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    connected_ = connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }

  //! Returns false if the server closed the connection.
  bool write(std::string_view text) {
    return send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }

  //! Reads until the server closes the connection. Throws after the timeout or a reset.
  std::string read_all() {
    std::string text;
    std::array<char, 1 << 14> buffer{};
    ssize_t count = 0;
    while ((count = recv(socket_, buffer.data(), buffer.size(), 0)) > 0)
      text.append(buffer.data(), static_cast<std::size_t>(count));
    if (count < 0) throw std::runtime_error(std::string("no response: ") + std::strerror(errno));
    return text;
  }

 private:
  int socket_;
  bool connected_ = false;
};

}  // namespace penstock::test
