// Makes calls of the C library fail in turn, in the main thread of the launcher and in each of its other
// threads (those of the store): the launcher ends with an error or continues, and must not hang or crash.
// failing_calls_slow_test.cpp covers calls that bypass the C library (memory, files that libtorch opens).
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <sstream>

namespace penstock::test {
namespace {

using Words = std::vector<std::string>;

const std::string kTorchTool = std::filesystem::path(PENSTOCK_TOOL).parent_path() / "penstock-torch";

struct Made {
  int main = 0, other = 0;  //!< the maximum over the other threads
};

//! How often a program makes each call.
std::map<std::string, Made> count_calls(const Words& program) {
  const TempDir dir;
  run_program(program, {"LD_PRELOAD=" FAILING_CALLS, "FAILING_CALL_COUNTS=" + (dir / "counts")});
  std::map<std::string, Made> counts;
  std::istringstream lines(slurp(dir / "counts"));
  std::string call;
  for (Made made; lines >> call >> made.main >> made.other;) counts[call] = made;
  return counts;
}

//! The most likely errors of this call.
std::vector<int> likely_errors(const std::string& call) {
  static const std::map<std::string, std::vector<int>> known{
      {"read", {EIO}},           {"write", {EPIPE}},          {"close", {EIO, EINTR}},
      {"socket", {EMFILE}},      {"accept4", {EMFILE}},       {"accept", {EMFILE}},
      {"poll", {ENOMEM, EINTR}}, {"epoll_wait", {EINTR}},     {"epoll_pwait", {EINTR}},
      {"epoll_ctl", {ENOMEM}},   {"epoll_create1", {EMFILE}}, {"eventfd", {EMFILE}},
      {"recv", {ECONNRESET}},    {"recvmsg", {ECONNRESET}},   {"send", {EPIPE}},
      {"sendmsg", {EPIPE}},      {"connect", {ENETUNREACH}},  {"bind", {EADDRINUSE}},
      {"listen", {EADDRINUSE}},  {"pipe2", {EMFILE}},         {"waitid", {ECHILD, EINTR}},
      {"waitpid", {ECHILD}},     {"kill", {EPERM}},           {"fork", {EAGAIN}},
      {"pidfd_open", {EPERM}},   {"pthread_create", {EAGAIN}}};
  const auto found = known.find(call);
  return found == known.end() ? std::vector<int>{EIO} : found->second;
}

void fail_call(const Words& job, const std::string& call, int error, int number, const std::string& thread) {
  const std::string fault = call + ":" + std::to_string(error) + ":" + std::to_string(number) + ":" + thread;
  SCOPED_TRACE(fault);
  Words words{"timeout", "-s", "KILL", "60", "env", "LD_PRELOAD=" FAILING_CALLS, "FAILING_CALL=" + fault};
  words.insert(words.end(), job.begin(), job.end());
  const Outcome outcome = run_program(words);
  EXPECT_TRUE(outcome.code >= 0 && outcome.code < 128) << outcome.code << "\n" << outcome.err;
  if (outcome.code != 0) {
    EXPECT_NE(outcome.err.find("penstock: error: "), std::string::npos) << outcome.err;
  }
}

enum class Threads { All, Others };

//! Fails each call as often as it is made, but at most `most` times.
void sweep(const Words& job, int most, Threads threads) {
  const auto started = count_calls({kTorchTool, "run", "--help"});  // calls that libtorch makes at startup
  const auto all = count_calls(job);
  int main = 0, others = 0;
  for (const auto& [call, made] : all) {
    const int before = started.at(call).main;
    const int last = threads == Threads::All ? std::min(made.main, before + most) : 0;
    for (const int error : likely_errors(call)) {
      for (int n = before + 1; n <= last; ++n, ++main) fail_call(job, call, error, n, "main");
      for (int n = 1; n <= std::min(made.other, most); ++n, ++others) fail_call(job, call, error, n, "other");
    }
  }
  if (threads == Threads::All) {
    EXPECT_GT(main, 20);
  }
  EXPECT_GE(others, 5);
  ::testing::Test::RecordProperty("refused", main + others);
}

int occurrences() {
  const char* const asked = std::getenv("PENSTOCK_FAILING_CALLS");
  return asked == nullptr ? 1 : std::stoi(asked);
}

TEST(ToolRunFailingCalls, InLauncherAreReportedOrTolerated) {
  sweep({kTorchTool, "run", "--ranks=2", "--grace=1", "--", "sh", "-c", "echo out; sleep 0.2"}, occurrences(),
        Threads::All);
}

// Old kernels and sandboxes have no pidfd_open.
TEST(ToolRunFailingCalls, PidfdIsOptional) {
  const TempDir dir;
  const Outcome outcome =
      run_program({kTorchTool, "run", "--ranks=2", "--grace=1", "--", "sh", "-c", "exit $RANK"},
                  {"LD_PRELOAD=" FAILING_CALLS, "FAILING_CALL_COUNTS=" + (dir / "counts"),
                   "FAILING_CALL=pidfd_open:" + std::to_string(EPERM) + ":0:main"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, testing::HasSubstr("rank 1 failed first: it exited with code 1"));
  EXPECT_THAT(slurp(dir / "counts"), testing::ContainsRegex("pidfd_open [2-9] 0"));
}

// The ranks connect to the launcher's store.
TEST(ToolRunFailingCalls, InStoreOfTrainingRunAreReportedOrTolerated) {
  sweep({kTorchTool, "train", "--ranks=2", "--steps=1", "--layers=2", "--width=8", "--heads=1", "--seq=4",
         "--batch=4", "--sample=0", "--timeout=20"},
        occurrences(), occurrences() > 1 ? Threads::All : Threads::Others);
}

}  // namespace
}  // namespace penstock::test
