// Finds processes by their marks; implements the process that cleans up after a killed launcher.
#include "comm/launch/process_tree.h"

#include "base/text.h"
#include "comm/failure/sockets.h"

#include <penstock/base/error.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace penstock::comm {
namespace {

namespace fs = std::filesystem;
constexpr const char* kJobsVariable = "PENSTOCK_JOB_MARK";

// Returns an empty text if the file cannot be read.
std::string process_file(pid_t pid, const char* name) {
  const Fd file(open(str_cat("/proc/", pid, "/", name).c_str(), O_RDONLY | O_CLOEXEC));
  std::string all;
  std::array<char, 8192> buffer{};
  for (ssize_t got = 0; file && (got = ::read(file.get(), buffer.data(), buffer.size())) > 0;)
    all.append(buffer.data(), static_cast<std::size_t>(got));
  return all;
}

// A zombie has no environment anymore, but it keeps its limits.
bool has_ended(pid_t pid) {
  const std::string status = process_file(pid, "stat");  // `pid (name) state ...`
  const std::size_t state = status.rfind(')') + 2;       // the name may contain parentheses
  return status.size() <= state || status[state] == 'Z' || status[state] == 'X';
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const pid_t pid = std::atoi(entry->path().filename().c_str());
    if (pid > 0 && pid != getpid()) pids.push_back(pid);
  }
  return pids;
}

}  // namespace

JobMark::JobMark(std::string id)
    : id_(std::move(id)),
      time_limit_((std::uint64_t{1} << 62U) | (std::uint64_t{std::hash<std::string>{}(id_)} >> 2U)) {}

std::pair<std::string, std::string> JobMark::variable() const {
  const char* const outer = std::getenv(kJobsVariable);
  return {kJobsVariable, outer == nullptr ? id_ : std::string(outer) + ":" + id_};
}

bool JobMark::is_on(pid_t pid) const {
  rlimit limit{};
  if (prlimit(pid, RLIMIT_RTTIME, nullptr, &limit) == 0 && limit.rlim_cur == time_limit_)
    return !has_ended(pid);
  return process_file(pid, "environ").find(id_) != std::string::npos;
}

int JobMark::end_once() const {
  int found = 0;
  for (const pid_t pid : all_processes()) {
    if (!is_on(pid)) continue;
    ++found;
    // The descriptor refers to this process even if its pid is reused; so check the marks again.
    const Fd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!process) {
      kill(pid, SIGKILL);
    } else if (is_on(pid)) {
      syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
    }
  }
  return found;
}

void JobMark::end_processes() const {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (end_once() != 0 && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

namespace {

// The messages from the launcher.
struct Messages {
  std::vector<pid_t> groups;
  std::vector<std::string> directories;
  bool in_order = false;

  void take(const std::string& line) {
    if (line.empty()) return;
    const std::string text = line.substr(1);
    if (line[0] == 'g') groups.push_back(std::atoi(text.c_str()));
    if (line[0] == 'd') directories.push_back(text);
    if (line[0] == 'f') groups.clear();
    if (line[0] == 'q') in_order = true;
  }
};

Messages listen_until_end(int pipe) {
  Messages messages;
  std::string line;
  std::array<char, 512> buffer{};
  for (;;) {
    const ssize_t got = ::read(pipe, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return messages;
    for (const char c : std::string_view(buffer.data(), static_cast<std::size_t>(got))) {
      if (c != '\n') {
        line += c;
        continue;
      }
      messages.take(line);
      if (messages.in_order) return messages;  // another child of the launcher may keep the pipe open
      line.clear();
    }
  }
}

void close_all_but(int kept) {
  for (int fd = 0; fd < 3; ++fd) {
    const int null = open("/dev/null", O_RDWR);
    if (null != fd && null >= 0) {
      dup2(null, fd);
      close(null);
    }
  }
#ifdef SYS_close_range
  if (syscall(SYS_close_range, 3U, static_cast<unsigned>(kept - 1), 0U) == 0 &&
      syscall(SYS_close_range, static_cast<unsigned>(kept + 1), ~0U, 0U) == 0)
    return;
#endif
  for (int fd = 3; fd < static_cast<int>(sysconf(_SC_OPEN_MAX)); ++fd)
    if (fd != kept) close(fd);
}

[[noreturn]] void guard(int pipe, const JobMark& mark) {
  prctl(PR_SET_NAME, "penstock-guard");
  setsid();  // Ctrl-C must only reach the launcher
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) signal(number, SIG_IGN);
  pipe = fcntl(pipe, F_DUPFD, 3);
  close_all_but(pipe);
  // An exception must not unwind into the launcher's code, of which this process is a copy.
  try {
    const Messages messages = listen_until_end(pipe);
    if (!messages.in_order) {
      for (const pid_t group : messages.groups) kill(-group, SIGKILL);
      mark.end_processes();
      std::error_code ignored;
      for (const std::string& directory : messages.directories) fs::remove_all(directory, ignored);
    }
  } catch (...) {
    _exit(1);
  }
  _exit(0);
}

}  // namespace

Guardian::Guardian(const JobMark& mark) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw CommError(std::string("cannot create a pipe: ") + std::strerror(errno));
  Fd read_end(ends[0]), write_end(ends[1]);
  pid_ = fork();
  if (pid_ < 0) throw CommError(std::string("cannot start a process: ") + std::strerror(errno));
  if (pid_ == 0) {
    write_end.reset();
    guard(read_end.get(), mark);
  }
  pipe_ = write_end.release();
}

Guardian::~Guardian() {
  send_message('q', {});
  close(pipe_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::send_message(char what, const std::string& text) {
  const std::string line = what + text + "\n";
  [[maybe_unused]] const auto written = ::write(pipe_, line.data(), line.size());
}

}  // namespace penstock::comm
