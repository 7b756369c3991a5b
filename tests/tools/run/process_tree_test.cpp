// The processes of a job: none remains, whether the job ends, is asked to stop, or its launcher is killed.
// Also the launcher's behavior when the system denies a resource.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace penstock::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr std::chrono::seconds kSoon{20};  // for operations that take a second or two

std::vector<std::string> run_line(const std::vector<std::string>& options, const std::string& script) {
  std::vector<std::string> words{PENSTOCK_TOOL, "run"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "sh", "-c", script});
  return words;
}

// Whether a process is running or runnable; zombies do not count.
bool exists(pid_t pid) {
  const std::string status = slurp("/proc/" + std::to_string(pid) + "/status");
  return !status.empty() && status.find("State:\tZ") == std::string::npos;
}

//! A job of two ranks, each of which has started four processes: one in the process group of the rank, one
//! there without the environment of the rank, one in its own session, and a daemon: a grandchild in its own
//! session, without the environment, whose parent has exited. All ignore every signal that can be ignored.
class Family {
 public:
  explicit Family(const std::string& then)
      : program_(
            run_line({"--ranks=2", "--grace=1"},
                     "echo $$ >> $PIDS; trap '' TERM INT HUP; "
                     "for how in env \"env -i PIDS=$PIDS\" setsid \"env -i PIDS=$PIDS setsid --fork\"; do "
                     "$how sh -c 'echo $$ >> $PIDS; while :; do sleep 1; done' & done; " +
                         then),
            {"TMPDIR=" + (dir_ / "tmp"), "PIDS=" + (dir_ / "pids")}) {
    fs::create_directory(dir_ / "tmp");
  }
  ~Family() {
    for (const pid_t pid : pids()) kill(pid, SIGKILL);
    if (!program_.ended()) kill(program_.pid(), SIGKILL);
    program_.finish();
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  Program& launcher() { return program_; }
  std::vector<pid_t> pids() const {
    std::istringstream text(slurp(dir_ / "pids"));
    std::vector<pid_t> found;
    for (pid_t pid = 0; text >> pid;) found.push_back(pid);
    return found;
  }
  void await_all() {
    while (!program_.ended() && pids().size() < 10) std::this_thread::yield();
  }
  //! Waits for the system to end the processes.
  bool anything_left() const {
    const auto deadline = Clock::now() + kSoon;
    while (Clock::now() < deadline) {
      const std::vector<pid_t> all = pids();
      if (fs::is_empty(dir_ / "tmp") && std::none_of(all.begin(), all.end(), exists)) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  TempDir dir_;
  Program program_;
};

TEST(ToolRunProcessTree, NoProcessRemainsAfterStopRequest) {
  Family family("wait");
  family.await_all();
  kill(family.launcher().pid(), SIGTERM);
  EXPECT_EQ(family.launcher().finish().code, 128 + SIGTERM);
  EXPECT_FALSE(family.anything_left());
}

TEST(ToolRunProcessTree, NoProcessRemainsAfterJobEnds) {
  Family family("while [ $(wc -l < $PIDS) -lt 10 ]; do sleep 0.01; done; exit $RANK");
  EXPECT_EQ(family.launcher().finish().code, 1);
  EXPECT_FALSE(family.anything_left());
}

TEST(ToolRunProcessTree, NoProcessOutlivesKilledLauncher) {
  Family family("wait");
  family.await_all();
  kill(family.launcher().pid(), SIGKILL);
  EXPECT_EQ(family.launcher().finish().code, 128 + SIGKILL);
  EXPECT_FALSE(family.anything_left());
}

// Its id is that of its process group, which the launcher terminates later.
TEST(ToolRunProcessTree, ProcessIdOfEndedRankIsNotReused) {
  const TempDir dir;
  const Outcome outcome = run_program(
      run_line({"--ranks=2", "--grace=1"},
               "if [ $RANK = 0 ]; then echo $$ > " + (dir / "id.new") + "; mv " + (dir / "id.new") + " " +
                   (dir / "id") + "; exit 0; fi; while [ ! -e " + (dir / "id") +
                   " ]; do sleep 0.01; done; id=$(cat " + (dir / "id") +
                   "); until grep -q 'State:.Z' /proc/$id/status; do [ -d /proc/$id ] || exit 9; done; "
                   "sleep 0.5; grep -q 'State:.Z' /proc/$id/status"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

//! The open descriptors of a shell's child, by number.
std::string descriptors(const std::string& text) {
  std::set<std::string> numbers;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) numbers.insert(line.substr(line.rfind(' ') + 1));
  std::string all;
  for (const std::string& number : numbers) all += number + " ";
  return all;
}

TEST(ToolRunDescriptors, AreNotInheritedFromLauncher) {
  const TempDir dir;
  // Descriptors of this test reach the ranks through the launcher. A rank that starts later would inherit
  // those of earlier ranks, and a restarted one those of a rank that ended.
  const std::string list = "ls /proc/self/fd";
  const std::string own = descriptors(run_program({"sh", "-c", list}).out);
  ASSERT_NE(own, "");
  EXPECT_EQ(descriptors(run_program(run_line({"--ranks=4"}, list)).out), own);
  const Outcome logged = run_program(run_line({"--ranks=2", "--log-dir=" + (dir / "log")}, list));
  EXPECT_EQ(logged.code, 0) << logged.err;
  for (const char* rank : {"0", "1"})
    EXPECT_EQ(descriptors(slurp(dir / ("log/attempt0/rank" + std::string(rank) + ".out"))), own);
  const Outcome again = run_program(run_line({"--ranks=2", "--max-restarts=1", "--grace=1"},
                                             list + "; exit $((1 - TORCHELASTIC_RESTART_COUNT))"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(descriptors(again.out), own);
}

TEST(ToolRunOutput, WithoutNewlinesIsForwardedInPieces) {
  const Outcome outcome = run_program(run_line({}, "head -c 3000000 /dev/zero | tr '\\0' x"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::size_t bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    ASSERT_THAT(line.substr(0, 5), "[0] x");
    bytes += line.size() - 4;
    EXPECT_LE(line.size(), std::size_t{4} + (1U << 20U));
  }
  EXPECT_EQ(bytes, 3000000U);
}

TEST(ToolRunOutput, KeepsProgressBars) {
  const Outcome outcome = run_program(run_line({}, "printf 'a 10%%\\ra 20%%\\rdone\\r\\nb\\n'; exit 3"));
  EXPECT_EQ(outcome.out, "[0] a 10%\r[0] a 20%\r[0] done\n[0] b\n");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("  | done\n  | b\n"), ::testing::Not(HasSubstr("10%"))));
}

TEST(ToolRunOutput, ClosedPipeEndsJob) {
  const TempDir dir;
  const Outcome outcome =
      run_program({"bash", "-c",
                   std::string(PENSTOCK_TOOL) + " run --grace 1 -- sh -c 'echo $$ > " + (dir / "pid") +
                       "; while :; do echo line; done' | head -1; echo ${PIPESTATUS[0]}"});
  EXPECT_EQ(outcome.out, "[0] line\n141\n") << outcome.err;
  EXPECT_FALSE(exists(std::stoi(slurp(dir / "pid"))));
}

TEST(ToolRunDescriptorLimit, IsReportedImmediately) {
  const std::string run = std::string(PENSTOCK_TOOL) + " run --ranks 2 -- true";
  const std::string train = std::string(PENSTOCK_TOOL) + " train --ranks 2 --steps 1";
  for (const auto& [limit, command] :
       std::vector<std::pair<int, std::string>>{{14, run}, {28, train}, {32, train}}) {
    const auto start = Clock::now();
    const Outcome outcome =
        run_program({"bash", "-c", "ulimit -n " + std::to_string(limit) + "; " + command});
    EXPECT_EQ(outcome.code, 1) << limit;
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("too few file descriptors"),
                      HasSubstr("the limit is " + std::to_string(limit)), HasSubstr("ulimit -n")));
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  }
}

TEST(ToolRunDescriptorLimit, ReachedByStoreEndsJob) {
  // Enough to start the ranks, but too few for all their connections to the launcher's store.
  const auto start = Clock::now();
  const Outcome outcome = run_program(
      {"bash", "-c",
       "ulimit -n 60; " PENSTOCK_TOOL
       " train --pp 2 --dp 2 --steps 2 --layers 2 --width 16 --heads 2 --seq 8 --batch 8 --sample 0 "
       "--backend gloo"});
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("too few file descriptors"), HasSubstr("ulimit -n")));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
}

TEST(ToolRunTokenFile, MustMatchOnEveryNode) {
  const TempDir dir;
  std::ofstream(dir / "a") << "0123456789abcdef0123456789abcdef\n";
  std::ofstream(dir / "b") << "another secret of enough bytes\n";
  const auto node = [&](int rank, int port, const std::string& file) {
    std::vector<std::string> options{"--nodes=2", "--join-timeout=30", "--node-rank=" + std::to_string(rank),
                                     "--rendezvous=127.0.0.1:" + std::to_string(port)};
    if (!file.empty()) options.push_back("--token-file=" + (dir / file));
    return run_line(options, "test ${#PENSTOCK_JOB_SECRET} = 32");
  };
  const int port = 20000 + getpid() % 10000;
  const std::vector<std::tuple<std::string, std::string, std::string>> cases{
      {"a", "a", ""}, {"a", "b", "token file of this node differs"}, {"a", "", "this node has none"}};
  for (const auto& [mine, theirs, problem] : cases) {
    Program zero(node(0, port, mine)), one(node(1, port, theirs));
    const Outcome second = one.finish();
    EXPECT_THAT(second.err, HasSubstr(problem));
    EXPECT_EQ(second.code, problem.empty() ? 0 : 2) << second.err;
    if (!problem.empty()) kill(zero.pid(), SIGINT);
    EXPECT_EQ(zero.finish().code, problem.empty() ? 0 : 128 + SIGINT);
  }
}

TEST(ToolRunTokenFile, MustExist) {
  const TempDir dir;
  const Outcome outcome = run_program(run_line({"--token-file=" + (dir / "none")}, "true"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("there is no file"));
}

TEST(ToolRunTokenFile, MustBeRegularFile) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  const Outcome option = run_program(run_line({"--token-file=" + (dir / "fifo")}, "true"));
  EXPECT_EQ(option.code, 1);
  EXPECT_THAT(option.err, HasSubstr("it is a FIFO, not a regular file"));
  const Outcome variable =
      run_program({PENSTOCK_TOOL, "train", "--steps=1", "--layers=2", "--width=8", "--heads=1", "--seq=4",
                   "--batch=4", "--sample=0"},
                  {"PENSTOCK_TOKEN_FILE=" + (dir / "fifo"), "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                   "MASTER_PORT=" + std::to_string(20000 + getpid() % 10000)});
  EXPECT_EQ(variable.code, 1);
  EXPECT_THAT(variable.err, HasSubstr("it is a FIFO, not a regular file"));
}

}  // namespace
}  // namespace penstock::test
