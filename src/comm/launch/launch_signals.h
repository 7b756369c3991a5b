// Signal handling of the launcher.
#pragma once

#include "comm/failure/sockets.h"

#include <array>
#include <csignal>

namespace penstock::comm {

//! During its lifetime, a write to a closed connection or pipe is an error instead of a fatal SIGPIPE, and
//! SIGCHLD is not ignored, so that children can be waited for. Keeps handlers that the user installed.
class QuietSignals {
 public:
  QuietSignals();
  ~QuietSignals();
  QuietSignals(const QuietSignals&) = delete;
  QuietSignals& operator=(const QuietSignals&) = delete;

 private:
  bool pipe_ = false, child_ = false;
};

//! During its lifetime, SIGINT, SIGTERM and SIGHUP do not kill this process but can be read from a
//! descriptor.
class SignalCatcher {
 public:
  explicit SignalCatcher(bool on);
  ~SignalCatcher();
  SignalCatcher(const SignalCatcher&) = delete;
  SignalCatcher& operator=(const SignalCatcher&) = delete;

  int fd() const { return read_.get(); }
  //! Returns the next pending signal, or 0.
  int next() const;

 private:
  static constexpr std::array<int, 3> kSignals{SIGINT, SIGTERM, SIGHUP};
  Fd read_, write_;
  bool on_;
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace penstock::comm
