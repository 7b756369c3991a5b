// Delivers the signals of the launcher through a pipe.
#include "comm/launch/launch_signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <tuple>

namespace penstock::comm {
namespace {

std::atomic<int> signal_pipe{-1};

void on_signal(int number) {
  const auto byte = static_cast<char>(number);
  [[maybe_unused]] const auto written = write(signal_pipe.load(), &byte, 1);
}

// Changes the disposition if it is `from`; returns whether it changed.
bool change_disposition(int number, void (*from)(int), void (*to)(int)) {
  struct sigaction now {};
  if (sigaction(number, nullptr, &now) != 0 || now.sa_handler != from) return false;
  return std::signal(number, to) != SIG_ERR;
}

}  // namespace

QuietSignals::QuietSignals()
    : pipe_(change_disposition(SIGPIPE, SIG_DFL, SIG_IGN)),
      child_(change_disposition(SIGCHLD, SIG_IGN, SIG_DFL)) {}

QuietSignals::~QuietSignals() {
  if (pipe_) std::signal(SIGPIPE, SIG_DFL);
  if (child_) std::signal(SIGCHLD, SIG_IGN);
}

SignalCatcher::SignalCatcher(bool on) : on_(on) {
  std::tie(read_, write_) = make_pipe(O_NONBLOCK);
  if (!on_) return;
  signal_pipe = write_.get();
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
}

SignalCatcher::~SignalCatcher() {
  if (!on_) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  signal_pipe = -1;
}

int SignalCatcher::next() const {
  char number = 0;
  return read(read_.get(), &number, 1) == 1 ? number : 0;
}

}  // namespace penstock::comm
