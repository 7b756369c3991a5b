// Ctrl-C during a step: a handler in front of Python's wakes a thread that fails the group.
#include "interrupt.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <mutex>
#include <optional>
#include <thread>

namespace penstock::python {
namespace {

struct Watch {
  std::array<int, 2> pipe{-1, -1};
  struct sigaction before {};
  std::mutex mutex;
  std::optional<comm::Group> group;  // of the running step
  pid_t process = 0;                 // that started the thread: it does not survive a fork
};

Watch& watch() {
  static auto* const instance = new Watch;  // never destroyed: the thread waits until the process ends
  return *instance;
}

std::atomic<bool> arrived{false};

// Only calls what a signal handler may call.
void on_signal(int signal, siginfo_t* info, void* context) {
  arrived = true;
  const char byte = 'x';
  [[maybe_unused]] const auto written = write(watch().pipe[1], &byte, 1);
  const struct sigaction& before = watch().before;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
}

void run(int read_end) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  char byte = 0;
  while (read(read_end, &byte, 1) == 1) {
    std::optional<comm::Group> group;
    {
      const std::lock_guard lock(watch().mutex);
      group = watch().group;
    }
    if (group) group->fail("interrupted (SIGINT)");
  }
}

void start_thread() {
  Watch& w = watch();
  if (w.process == getpid()) return;
  if (pipe(w.pipe.data()) != 0) return;
  std::thread(run, w.pipe[0]).detach();
  w.process = getpid();
}

}  // namespace

InterruptScope::InterruptScope(comm::Group& group, bool armed) : armed_(armed) {
  arrived = false;
  if (!armed_) return;
  start_thread();
  {
    const std::lock_guard lock(watch().mutex);
    watch().group = group;
  }
  struct sigaction action {};
  action.sa_sigaction = &on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  armed_ = sigaction(SIGINT, &action, &watch().before) == 0;
}

InterruptScope::~InterruptScope() {
  if (!armed_) return;
  sigaction(SIGINT, &watch().before, nullptr);
  const std::lock_guard lock(watch().mutex);
  watch().group.reset();
}

bool InterruptScope::interrupted() {
  return arrived;
}

}  // namespace penstock::python
