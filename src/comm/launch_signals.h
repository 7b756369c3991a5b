// While it lives, SIGINT, SIGTERM and SIGHUP do not end this process but can be read from a descriptor.
#pragma once

#include "comm/sockets.h"

#include <array>
#include <csignal>

namespace penstock {

class SignalCatcher {
 public:
  explicit SignalCatcher(bool on);
  ~SignalCatcher();
  SignalCatcher(const SignalCatcher&) = delete;
  SignalCatcher& operator=(const SignalCatcher&) = delete;

  int fd() const { return read_.get(); }
  //! The next signal that came, or 0.
  int next() const;

 private:
  static constexpr std::array<int, 3> kSignals{SIGINT, SIGTERM, SIGHUP};
  Fd read_, write_;
  bool on_;
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace penstock
