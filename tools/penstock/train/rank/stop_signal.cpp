// Remembers the first signal.
#include "train/rank/stop_signal.h"

#include <atomic>

namespace penstock::tool {
namespace {

std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_stop_signal(int number) {
  int none = 0;
  if (received_signal.compare_exchange_strong(none, number)) return;
  std::signal(number, SIG_DFL);
  std::raise(number);
}

}  // namespace

StopSignals::StopSignals(Which which) : count_(which == Which::Both ? 2 : 1) {
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < count_; ++i) sigaction(kCaught[i], &action, &before_[i]);
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < count_; ++i) sigaction(kCaught[i], &before_[i], nullptr);
}

int StopSignals::received() {
  return received_signal;
}

}  // namespace penstock::tool
