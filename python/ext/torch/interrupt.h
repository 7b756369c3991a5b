// Ctrl-C during a step. Python runs its signal handler only between instructions of Python, and a step may
// wait for another rank in C++ for minutes.
#pragma once

#include <penstock/comm/group.h>

#include <atomic>

namespace penstock::python {

//! While it lives on the main thread, SIGINT also fails the group, so that all waits end. It changes nothing
//! on other threads, or if Python does not handle SIGINT.
class InterruptScope {
 public:
  explicit InterruptScope(comm::Group& group, bool armed);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  //! Whether SIGINT arrived.
  static bool interrupted();

 private:
  bool armed_;
};

}  // namespace penstock::python
