// Makes every system call of the launcher fail in turn: the launcher may end with an error or continue, but
// must not hang or crash, and no process of the job may remain.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <thread>

namespace penstock::test {
namespace {

namespace fs = std::filesystem;
using Counts = std::map<std::string, int>;

const std::string kTorchTool = fs::path(PENSTOCK_TOOL).parent_path() / "penstock-torch";

//! How often the main thread of a program makes each system call.
Counts count_calls(const std::vector<std::string>& program) {
  const TempDir dir;
  std::vector<std::string> words{"strace", "-o", dir / "trace"};
  words.insert(words.end(), program.begin(), program.end());
  run_program(words);
  Counts counts;
  std::istringstream lines(slurp(dir / "trace"));
  for (std::string line; std::getline(lines, line);)
    if (const auto end = line.find('('); end != std::string::npos) ++counts[line.substr(0, end)];
  return counts;
}

//! The most likely error of this call.
std::string likely_error(const std::string& call) {
  static const std::map<std::string, std::string> known{
      {"openat", "EMFILE"},   {"pipe2", "EMFILE"},     {"socket", "EMFILE"}, {"clone", "EAGAIN"},
      {"clone3", "EAGAIN"},   {"vfork", "EAGAIN"},     {"fork", "EAGAIN"},   {"mmap", "ENOMEM"},
      {"poll", "ENOMEM"},     {"waitid", "ECHILD"},    {"wait4", "ECHILD"},  {"connect", "ENETUNREACH"},
      {"bind", "EADDRINUSE"}, {"pidfd_open", "EPERM"}, {"kill", "EPERM"},    {"mkdir", "ENOSPC"},
      {"write", "EPIPE"}};
  const auto found = known.find(call);
  return found == known.end() ? "EIO" : found->second;
}

// Calls that cannot fail, and `close`: on Linux a failing close does close, but an injected failure does not
// (failing_calls_test.cpp covers it, and the other threads).
const std::set<std::string> kHarmless{"brk", "close", "execve", "exit_group", "futex", "munmap"};

//! Whether the failed call was one on such a file.
bool injected_into(const std::string& trace, const std::string& file) {
  std::istringstream lines(trace);
  for (std::string line; std::getline(lines, line);)
    if (line.find("(INJECTED)") != std::string::npos) return line.find(file) != std::string::npos;
  return false;
}

//! The processes with this setting in their environment: every process that a program started.
std::vector<std::string> processes_with(const std::string& setting) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string environment = slurp(entry->path() / "environ");
    if (environment.find(setting) != std::string::npos) found.push_back(slurp(entry->path() / "cmdline"));
  }
  return found;
}

//! Waits until the system has ended them.
std::vector<std::string> remaining_processes(const std::string& setting) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::vector<std::string> found = processes_with(setting);
  while (!found.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    found = processes_with(setting);
  }
  return found;
}

TEST(ToolRunFailingSystemCalls, InLauncherAreReportedOrTolerated) {
  if (run_program({"strace", "-o", "/dev/null", "true"}).code != 0) GTEST_SKIP() << "no strace here";
  // Each rank leaves a process behind.
  const std::vector<std::string> job{
      kTorchTool, "run", "--ranks=2", "--grace=1",
      "--",       "sh",  "-c",        "sleep 1000 >/dev/null 2>&1 & echo out; sleep 0.2"};
  const Counts started = count_calls({kTorchTool, "run", "--help"});  // of the dynamic linker and libtorch
  const Counts all = count_calls(job);
  int injected = 0;
  for (const auto& [call, count] : all) {
    if (kHarmless.contains(call)) continue;
    const auto before = started.find(call);
    const int first = before == started.end() ? 1 : before->second + 1;
    for (int n = first; n <= std::min(count, first + 39); ++n) {
      SCOPED_TRACE(call + " number " + std::to_string(n));
      if (call == "pipe2" && n == 2) continue;  // libuv aborts without a pipe for its signals
      ++injected;
      const TempDir dir;
      const std::string fault = call + ":error=" + likely_error(call) + ":when=" + std::to_string(n);
      std::vector<std::string> words{"timeout", "-s", "KILL", "60", "strace", "-y"};
      words.insert(words.end(), {"-o", dir / "trace", "-e", "inject=" + fault});
      words.insert(words.end(), job.begin(), job.end());
      const std::string setting = "PENSTOCK_TEST_RUN=" + dir.path();
      const Outcome outcome = run_program(words, {setting});
      EXPECT_THAT(remaining_processes(setting), testing::IsEmpty());
      if (outcome.code == 128 + SIGABRT && injected_into(slurp(dir / "trace"), "eventfd"))
        continue;  // libuv aborts if eventfd fails
      EXPECT_TRUE(outcome.code >= 0 && outcome.code < 128) << outcome.code << "\n" << outcome.err;
      if (outcome.code != 0) {
        EXPECT_NE(outcome.err, "");
      }
    }
  }
  EXPECT_GT(injected, 50);
  RecordProperty("injected", injected);
}

}  // namespace
}  // namespace penstock::test
