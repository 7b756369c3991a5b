// Serves pages on the loopback interface, to this machine only.
#pragma once

#include "studio/http.h"

#include <chrono>
#include <optional>
#include <string>

namespace penstock::tool {

//! A file descriptor that is closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return number_; }

 private:
  int number_;
};

class PageServer {
 public:
  //! Listens on 127.0.0.1. Without a port, takes the usual one if it is free, else any free one; port 0
  //! always takes a free one. Throws a UsageError if the port is in use.
  PageServer(FindContent find, std::optional<int> port);
  //! Serves one page, at `/` and `/index.html`.
  PageServer(std::string page, std::optional<int> port);

  int port() const { return port_; }
  //! `http://127.0.0.1:8765/`
  std::string address() const;

  //! Answers requests until `stop` becomes readable. A connection that sends no complete request in time is
  //! closed.
  void serve(const Descriptor& stop);

 private:
  FindContent find_;
  Descriptor listener_;
  int port_ = 0;
};

//! How long a connection may take.
inline constexpr std::chrono::seconds kConnectionTimeout{10};

//! Becomes readable on SIGINT and SIGTERM, which no longer end the process.
Descriptor stop_signals();

}  // namespace penstock::tool
