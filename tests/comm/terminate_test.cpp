// The terminate handler installed by `init` must not wait for a lock that the terminating thread holds. This
// program interposes pthread_mutex_lock to terminate in a signal handler while a lock is held, and to observe
// every lock that the terminating thread takes.
#include <penstock/comm/world.h>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>

namespace {

std::atomic<int> locks_until_signal{0};  //!< counted on the main thread; 0: no signal
std::atomic<int> locks_made{0};
thread_local bool terminating = false;
thread_local bool is_main = false;

[[noreturn]] void end_badly(const char* why) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, why, std::char_traits<char>::length(why));
  _exit(9);
}

void on_signal(int /*number*/) {
  terminating = true;
  std::terminate();
}

}  // namespace

// The declaration in the header has another exception specification.
extern "C" int watched_mutex_lock(pthread_mutex_t* mutex) __asm__("pthread_mutex_lock");
extern "C" int watched_mutex_lock(pthread_mutex_t* mutex) {
  static auto* const real =
      reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  if (terminating) end_badly("a lock was taken by the thread that terminates\n");
  const int result = real(mutex);
  if (!is_main) return result;
  ++locks_made;
  if (locks_until_signal > 0 && --locks_until_signal == 0) raise(SIGUSR1);
  return result;
}

namespace penstock::test {
namespace {

//! Creates and destroys a world. Terminates with the `lock`-th lock held, counted from the last lock in
//! `init`.
void terminate_in_leave(int lock) {
  alarm(120);  // its default action would end the process differently
  std::signal(SIGUSR1, on_signal);
  is_main = true;
  {
    const comm::World world = comm::init();
    locks_until_signal = lock;
  }
  _exit(3);
}

int locks_of_leave() {
  is_main = true;
  int before = 0;
  {
    const comm::World world = comm::init();
    before = locks_made;
  }
  is_main = false;
  return locks_made - before;
}

TEST(CommOnTerminateDeathTest, TakesNoLockInSignalHandler) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int locks = locks_of_leave();
  ASSERT_GT(locks, 0);
  // The first one is the lock of the registry of worlds, which the handler reads.
  for (int lock = 1; lock <= locks; ++lock)
    EXPECT_EXIT(terminate_in_leave(lock), ::testing::KilledBySignal(SIGABRT), "") << "lock " << lock;
}

TEST(CommOnTerminateDeathTest, ReportsException) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        alarm(120);
        const comm::World world = comm::init();
        const std::function<void()> fail = [] { throw std::runtime_error("of the test"); };
        [&]() noexcept { fail(); }();
      },
      ::testing::KilledBySignal(SIGABRT), "of the test");
}

}  // namespace
}  // namespace penstock::test
