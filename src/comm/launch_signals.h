// The launcher's signals.
#pragma once

#include "comm/sockets.h"

#include <array>
#include <csignal>

namespace penstock {

//! While it lives, a write to a connection or pipe whose other end is gone is an error and does not end this
//! process, and the end of a child can be waited for. Handlers of the user's are left alone.
class QuietSignals {
 public:
  QuietSignals();
  ~QuietSignals();
  QuietSignals(const QuietSignals&) = delete;
  QuietSignals& operator=(const QuietSignals&) = delete;

 private:
  bool pipe_ = false, child_ = false;
};

//! While it lives, SIGINT, SIGTERM and SIGHUP do not end this process but can be read from a descriptor.
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
