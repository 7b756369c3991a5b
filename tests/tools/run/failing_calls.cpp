// Preloaded into a launcher: makes one call of the C library fail, the N-th of the main thread or the N-th of
// each other thread; all of them if N is 0. Unlike strace, it distinguishes threads from the first call on,
// and a failing `close` does close, as on Linux. FAILING_CALL=name:errno:N:main|other selects the call;
// FAILING_CALL_COUNTS=FILE writes how often each thread made each call (the maximum over threads), as `name
// main other`. Neither has an effect on the ranks.
#include <dlfcn.h>
#include <execinfo.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::array kNames{"read",        "write",  "readv",   "writev",     "close",       "socket",
                            "accept4",     "accept", "poll",    "epoll_wait", "epoll_ctl",   "epoll_create1",
                            "eventfd",     "recv",   "send",    "recvmsg",    "sendmsg",     "connect",
                            "bind",        "listen", "pipe2",   "waitid",     "getsockopt",  "setsockopt",
                            "getsockname", "kill",   "waitpid", "fork",       "epoll_pwait", "pthread_create",
                            "pidfd_open"};

constexpr std::size_t index_of(const char* name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const char *a = kNames[i], *b = name;
    while (*a != 0 && *a == *b) ++a, ++b;
    if (*a == *b) return i;
  }
  return kNames.size();
}

struct Plan {
  pid_t process = getpid();
  std::size_t call = kNames.size();
  int error = 0, number = 0;
  bool main = false;
  std::array<std::array<std::atomic<int>, 2>, kNames.size()> most{};
  char counts[4096] = "";

  Plan() {
    if (const char* text = std::getenv("FAILING_CALL")) {
      char name[64] = "", who[16] = "";
      if (std::sscanf(text, "%63[^:]:%d:%d:%15s", name, &error, &number, who) != 4) std::abort();
      call = index_of(name);
      main = std::strcmp(who, "main") == 0;
    }
    if (const char* file = std::getenv("FAILING_CALL_COUNTS"))
      std::snprintf(counts, sizeof counts, "%s", file);
    unsetenv("LD_PRELOAD");
  }
  ~Plan() {
    if (counts[0] == 0 || getpid() != process) return;
    std::FILE* const file = std::fopen(counts, "w");
    for (std::size_t i = 0; file != nullptr && i < kNames.size(); ++i)
      std::fprintf(file, "%s %d %d\n", kNames[i], most[i][0].load(), most[i][1].load());
    if (file != nullptr) std::fclose(file);
  }
};

Plan& plan() {
  static Plan instance;
  return instance;
}

//! Counts the call and returns the error to inject, or 0.
int injected_error(std::size_t call) {
  static thread_local std::array<int, kNames.size()> made{};
  Plan& asked = plan();
  if (getpid() != asked.process) return 0;
  const bool main = gettid() == asked.process;
  const int number = ++made[call];
  std::atomic<int>& most = asked.most[call][main ? 0 : 1];
  if (number > most) most = number;
  const bool selected = asked.number == 0 || number == asked.number;
  return call == asked.call && main == asked.main && selected ? asked.error : 0;
}

//! Whether libuv makes the call on one of its own descriptors, for signals or to wake its loop: libuv aborts
//! if that fails.
bool is_libuvs_own() {
  std::array<void*, 12> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 0; i < count; ++i) {
    Dl_info info{};
    if (dladdr(frames[static_cast<std::size_t>(i)], &info) == 0 || info.dli_sname == nullptr) continue;
    for (const char* own : {"uv_once", "uv__signal", "uv_signal", "uv__async", "uv_async"})
      if (std::strncmp(info.dli_sname, own, std::strlen(own)) == 0) return true;
  }
  return false;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

[[gnu::constructor]] void start() {
  plan();
}

}  // namespace

// The headers declare these functions with other exception specifications, so they get other names in C++.
#define INTERCEPT(result, name, parameters, arguments)            \
  extern "C" result intercepted_##name parameters __asm__(#name); \
  extern "C" result intercepted_##name parameters {               \
    static auto* const real = next<result parameters>(#name);     \
    static_assert(index_of(#name) < kNames.size());               \
    const int error = injected_error(index_of(#name));            \
    if (error != 0 && !is_libuvs_own()) return errno = error, -1; \
    return real arguments;                                        \
  }

INTERCEPT(ssize_t, read, (int fd, void* data, size_t size), (fd, data, size))
INTERCEPT(ssize_t, write, (int fd, const void* data, size_t size), (fd, data, size))
INTERCEPT(ssize_t, readv, (int fd, const iovec* parts, int count), (fd, parts, count))
INTERCEPT(ssize_t, writev, (int fd, const iovec* parts, int count), (fd, parts, count))
INTERCEPT(int, socket, (int domain, int type, int protocol), (domain, type, protocol))
INTERCEPT(int, accept4, (int fd, sockaddr* from, socklen_t* size, int flags), (fd, from, size, flags))
INTERCEPT(int, accept, (int fd, sockaddr* from, socklen_t* size), (fd, from, size))
INTERCEPT(int, poll, (pollfd * fds, nfds_t count, int timeout), (fds, count, timeout))
INTERCEPT(int, epoll_wait, (int fd, epoll_event* events, int most, int timeout), (fd, events, most, timeout))
INTERCEPT(int, epoll_pwait, (int fd, epoll_event* events, int most, int timeout, const sigset_t* mask),
          (fd, events, most, timeout, mask))
INTERCEPT(int, epoll_ctl, (int fd, int what, int on, epoll_event* event), (fd, what, on, event))
INTERCEPT(int, epoll_create1, (int flags), (flags))
INTERCEPT(int, eventfd, (unsigned value, int flags), (value, flags))
INTERCEPT(ssize_t, recv, (int fd, void* data, size_t size, int flags), (fd, data, size, flags))
INTERCEPT(ssize_t, send, (int fd, const void* data, size_t size, int flags), (fd, data, size, flags))
INTERCEPT(ssize_t, recvmsg, (int fd, msghdr* message, int flags), (fd, message, flags))
INTERCEPT(ssize_t, sendmsg, (int fd, const msghdr* message, int flags), (fd, message, flags))
INTERCEPT(int, connect, (int fd, const sockaddr* to, socklen_t size), (fd, to, size))
INTERCEPT(int, bind, (int fd, const sockaddr* at, socklen_t size), (fd, at, size))
INTERCEPT(int, listen, (int fd, int queue), (fd, queue))
INTERCEPT(int, pipe2, (int* ends, int flags), (ends, flags))
INTERCEPT(int, waitid, (idtype_t type, id_t id, siginfo_t* info, int how), (type, id, info, how))
INTERCEPT(int, getsockopt, (int fd, int level, int name, void* value, socklen_t* size),
          (fd, level, name, value, size))
INTERCEPT(int, setsockopt, (int fd, int level, int name, const void* value, socklen_t size),
          (fd, level, name, value, size))
INTERCEPT(int, getsockname, (int fd, sockaddr* at, socklen_t* size), (fd, at, size))
INTERCEPT(int, kill, (pid_t pid, int number), (pid, number))
INTERCEPT(pid_t, waitpid, (pid_t pid, int* status, int how), (pid, status, how))
INTERCEPT(pid_t, fork, (), ())

extern "C" int intercepted_close(int fd) __asm__("close");
extern "C" int intercepted_close(int fd) {
  static auto* const real = next<int(int)>("close");
  const int error = injected_error(index_of("close"));
  const int result = real(fd);
  return error != 0 && result == 0 ? (errno = error, -1) : result;
}

extern "C" int intercepted_pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*),
                                          void* with) __asm__("pthread_create");
extern "C" int intercepted_pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*),
                                          void* with) {
  static auto* const real =
      next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  if (const int error = injected_error(index_of("pthread_create"))) return error;
  return real(thread, how, run, with);
}

// pidfd_open is called through `syscall`, because older C libraries have no function for it. The pointer is
// not a local static variable: waiting for its initialization would call `syscall`.
using SystemCall = long(long, long, long, long, long, long, long);
static std::atomic<SystemCall*> real_syscall{nullptr};

extern "C" long intercepted_syscall(long number, long a, long b, long c, long d, long e,
                                    long f) __asm__("syscall");
extern "C" long intercepted_syscall(long number, long a, long b, long c, long d, long e, long f) {
  if (real_syscall == nullptr) real_syscall = next<SystemCall>("syscall");
  if (number == SYS_pidfd_open) {
    if (const int error = injected_error(index_of("pidfd_open"))) return errno = error, -1;
  }
  return real_syscall.load()(number, a, b, c, d, e, f);
}
