// `penstock run` through the real tool: environment, output, failures, restarts, signals, several nodes,
// torchrun.
#include "comm/failure/sockets.h"
#include "support/process_ranks.h"
#include "support/simulated_hosts.h"

#include <penstock/base/error.h>
#include <penstock/comm/world.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

namespace penstock::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

struct ShellResult {
  int code = -1;
  std::string output;  // both streams
};

ShellResult shell(const std::string& command) {
  std::FILE* const pipe = popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  ShellResult finished;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    finished.output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

ShellResult run(const std::string& rest) {
  return shell(std::string("timeout 120 ") + PENSTOCK_TOOL + " run " + rest);
}

std::string self() {
  return fs::read_symlink("/proc/self/exe").string();
}

//! A port that was free a moment ago.
std::string free_port() {
  const auto [listener, endpoint] = comm::listen_on("127.0.0.1");
  return std::to_string(endpoint.port);
}

TEST(ToolRun, SetsTorchrunEnvironmentAndPrefixesOutput) {
  const ShellResult done =
      run("--ranks 2 -- sh -c 'echo $RANK/$WORLD_SIZE/$LOCAL_RANK/$LOCAL_WORLD_SIZE/$GROUP_RANK on "
          "$MASTER_ADDR; echo e >&2'");
  EXPECT_EQ(done.code, 0) << done.output;
  EXPECT_THAT(done.output,
              AllOf(HasSubstr("[0] 0/2/0/2/0 on 127.0.0.1\n"), HasSubstr("[1] 1/2/1/2/0 on 127.0.0.1\n"),
                    HasSubstr("[0] e\n"), HasSubstr("[1] e\n")));
}

TEST(ToolRun, ReportsFirstFailureWithLastLinesAndEndsOtherRanks) {
  const ShellResult done =
      run("--ranks 3 --grace 0.2 -- sh -c 'if [ $RANK = 2 ]; then echo last words; kill -SEGV $$; fi; exec "
          "sleep 100'");
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.output,
              AllOf(HasSubstr("rank 2 failed first: it was killed by signal 11 (SIGSEGV)"),
                    HasSubstr("  | last words"),
                    HasSubstr("rank 0 was killed by signal 15 (SIGTERM), ended by the launcher")));
}

TEST(ToolRun, ReportsFailureAsJson) {
  const ShellResult done =
      run("--json --ranks 2 --grace 0.2 -- sh -c 'if [ $RANK = 1 ]; then echo last words >&2; exit 3; fi; "
          "exec sleep 100'");
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.output, AllOf(HasSubstr(R"({"rank":1,"stream":"stderr","line":"last words"})"),
                                 HasSubstr(R"({"ok":false,"restarts":0,"first_failure":1,"cause":"",)"),
                                 HasSubstr(R"({"rank":0,"code":0,"signal":15,)"),
                                 HasSubstr(R"({"rank":1,"code":3,"signal":0,)")));
}

TEST(ToolRun, KillsRanksThatIgnoreSigterm) {
  // Rank 0 fails only after rank 1 ignores the signal.
  const TempDir dir;
  const std::string trapped = dir / "trapped";
  const ShellResult done =
      run("--ranks 2 --grace 0 -- sh -c 'if [ $RANK = 0 ]; then while [ ! -e " + trapped +
          " ]; do :; done; exit 5; fi; trap \"\" TERM; : > " + trapped + "; while :; do sleep 1; done'");
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.output, HasSubstr("rank 1 was killed by signal 9 (SIGKILL), ended by the launcher"));
}

TEST(ToolRun, WritesOutputToFiles) {
  const TempDir dir;
  const ShellResult done =
      run("--ranks 2 --log-dir " + dir.path() + " -- sh -c 'echo out $RANK; echo err $RANK >&2'");
  EXPECT_EQ(done.code, 0) << done.output;
  EXPECT_EQ(slurp(dir / "attempt0/rank1.out"), "out 1\n");
  EXPECT_EQ(slurp(dir / "attempt0/rank0.err"), "err 0\n");
  EXPECT_EQ(done.output, "");
  const std::string logs = dir / "new/logs";
  const ShellResult created = run("--log-dir " + logs + " -- echo out");
  EXPECT_EQ(created.code, 0) << created.output;
  EXPECT_EQ(created.output, "created the directory " + logs + "\n");
  EXPECT_EQ(slurp(logs + "/attempt0/rank0.out"), "out\n");
}

TEST(ToolRun, RestartsAllRanksUpToLimit) {
  const std::string program =
      "-- sh -c 'echo attempt $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ]'";
  const ShellResult enough = run("--ranks 2 --max-restarts 2 " + program);
  EXPECT_EQ(enough.code, 0) << enough.output;
  EXPECT_THAT(enough.output, AllOf(HasSubstr("[1] attempt 2\n"), HasSubstr("restarting (2 of 2)")));
  const ShellResult few = run("--ranks 2 --max-restarts 1 " + program);
  EXPECT_EQ(few.code, 1);
}

TEST(ToolRun, InvalidUsageExitsWith2) {
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("--ranks 0 -- true").code, 2);
  EXPECT_EQ(run("--ranks x -- true").code, 2);
  EXPECT_EQ(run("--grace -1 -- true").code, 2);
  EXPECT_EQ(run("--grace nan -- true").code, 2);
  EXPECT_EQ(run("--join-timeout 1e300 -- true").code, 2);
  EXPECT_EQ(run("--nodes 2 -- true").code, 2);
  EXPECT_EQ(run("--nodes 2 --node-rank 5 --rendezvous 127.0.0.1:1 -- true").code, 2);
  EXPECT_EQ(run("--rendezvous nowhere -- true").code, 2);
  const ShellResult missing = run("-- ./there-is-no-such-program");
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.output, AllOf(HasSubstr("penstock: error: cannot start"), HasSubstr("hint: ")));
}

const RankFunction announce_ranks("announce", [] {
  comm::World world = comm::init();
  world.group().barrier();
  std::cout << "here " << getpid() << std::endl;
  world.group().recv(at::empty(1), (world.rank().value + 1) % world.size());  // runs forever
  return 0;
});

TEST(ToolRun, ForwardsSignalsToAllRanks) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    setenv("PENSTOCK_TEST_RANKS", "announce", 1);
    execl(PENSTOCK_TOOL, "penstock", "run", "--ranks", "2", "--grace", "5", "--", self().c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::FILE* const output = fdopen(ends[0], "r");
  std::vector<pid_t> ranks;
  std::array<char, 512> line{};
  while (ranks.size() < 2 && std::fgets(line.data(), line.size(), output) != nullptr) {
    int rank = 0, pid = 0;
    if (std::sscanf(line.data(), "[%d] here %d", &rank, &pid) == 2) ranks.push_back(pid);
  }
  ASSERT_EQ(ranks.size(), 2U);
  kill(launcher, SIGINT);
  int status = 0;
  waitpid(launcher, &status, 0);
  std::fclose(output);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
  for (const pid_t pid : ranks) EXPECT_NE(kill(pid, 0), 0) << "rank process " << pid << " is still there";
}

const RankFunction hello_ranks("hello", [] {
  comm::World world = comm::init();
  const at::Tensor sum = at::full({1}, world.rank().value + 1, at::kLong);
  world.group().all_reduce(sum);
  std::cout << "sum " << sum.item<std::int64_t>() << " of " << world.size() << " local " << world.local_rank()
            << std::endl;
  return 0;
});

std::string hello(const std::string& prefix) {
  return prefix + " env PENSTOCK_TEST_RANKS=hello " + self();
}

TEST(ToolRun, NodesRendezvousAndNumberTheirRanks) {
  // Two launchers on one machine, with 1 and 2 ranks.
  const std::string at = " --nodes 2 --rendezvous 127.0.0.1:" + free_port() + " -- ";
  const std::string tool = std::string("timeout 60 ") + PENSTOCK_TOOL + " run ";
  const ShellResult done = shell("( " + hello(tool + "--ranks 1 --node-rank 0" + at) + " & " +
                                 hello(tool + "--ranks 2 --node-rank 1" + at) + "; wait )");
  EXPECT_THAT(done.output, AllOf(HasSubstr("[0] sum 6 of 3 local 0\n"), HasSubstr("[1] sum 6 of 3 local 0\n"),
                                 HasSubstr("[2] sum 6 of 3 local 1\n")));
}

TEST(ToolRun, WaitingLauncherReportsItAndCanBeStopped) {
  for (const int node : {0, 1}) {
    test::Program alone({PENSTOCK_TOOL, "run", "--nodes=2", "--node-rank=" + std::to_string(node),
                         "--rendezvous=127.0.0.1:" + free_port(), "--", "true"});
    const std::string waits = "waiting for node " + std::to_string(1 - node);
    while (!alone.ended() && alone.err().find(waits) == std::string::npos) std::this_thread::yield();
    ASSERT_FALSE(alone.ended()) << alone.err();
    kill(alone.pid(), SIGINT);
    EXPECT_EQ(alone.finish().code, 128 + SIGINT);
  }
}

TEST(ToolRun, ReportsMissingNode) {
  const std::string at = "--nodes 2 --join-timeout 0.5 --rendezvous 127.0.0.1:" + free_port() + " -- true";
  const ShellResult zero = run("--node-rank 0 " + at), one = run("--node-rank 1 " + at);
  EXPECT_EQ(zero.code, 1);
  EXPECT_THAT(zero.output, HasSubstr("node 1 did not join within 500 ms"));
  EXPECT_EQ(one.code, 1);
  EXPECT_THAT(one.output, AllOf(HasSubstr("the store at 127.0.0.1:"), HasSubstr("cannot be reached"),
                                HasSubstr("hint: check the rendezvous address")));
}

TEST(ToolRun, FailureOnOneNodeEndsOthers) {
  const std::string at = " --nodes 2 --grace 1 --rendezvous 127.0.0.1:" + free_port() +
                         " -- sh -c 'if [ $RANK = 1 ]; then exit 9; fi; exec "
                         "sleep 100'";
  const std::string tool = std::string("timeout 60 ") + PENSTOCK_TOOL + " run --ranks 1 ";
  const ShellResult done = shell("( " + tool + "--node-rank 0" + at + "; echo zero $?; ) & " + tool +
                                 "--node-rank 1" + at + "; echo one $?; wait");
  EXPECT_THAT(done.output, AllOf(HasSubstr("zero 1"), HasSubstr("one 1"),
                                 HasSubstr("rank 1 failed first, on another node"),
                                 HasSubstr("rank 1 failed first: it exited with code 9")));
}

// Holds even if the ranks never communicate with each other.
TEST(ToolRun, UnresponsiveLauncherEndsOtherNodes) {
  const test::TempDir dir;
  const std::string at = " --nodes 2 --grace 1 --rendezvous 127.0.0.1:" + free_port() +
                         " -- sh -c 'if [ $RANK = 1 ]; then echo $PPID > " + (dir / "launcher") +
                         "; kill -STOP $PPID; fi; exec sleep 100'";
  const std::string tool =
      std::string("PENSTOCK_HEARTBEAT=1 timeout 60 ") + PENSTOCK_TOOL + " run --ranks 1 ";
  const ShellResult done =
      shell("( " + tool + "--node-rank 1" + at + "; echo one $? ) & " + tool + "--node-rank 0" + at +
            "; echo zero $?; kill -CONT $(cat " + (dir / "launcher") + "); wait");
  EXPECT_THAT(done.output, AllOf(HasSubstr("zero 1"), HasSubstr("node 1 sent no heartbeat"),
                                 HasSubstr("one 1"), HasSubstr("node 0 cannot be reached: its launcher")));
}

TEST(ToolRun, RunsOverTwoNetworkNamespaces) {
  const test::SimulatedHosts hosts(2);
  if (!hosts.problem().empty()) GTEST_SKIP() << hosts.problem();
  const auto line = [&](int host, const std::string& ranks) {
    return hosts.on(host, {"timeout", "60", PENSTOCK_TOOL, "run", "--ranks", ranks, "--nodes=2",
                           "--node-rank=" + std::to_string(host),
                           "--rendezvous=" + test::SimulatedHosts::address(0) + ":29500", "--", self()});
  };
  test::Program first(line(0, "2"), {"PENSTOCK_TEST_RANKS=hello"});
  test::Program second(line(1, "1"), {"PENSTOCK_TEST_RANKS=hello"});
  const test::Outcome zero = first.finish(), one = second.finish();
  EXPECT_THAT(zero.out, AllOf(HasSubstr("[0] sum 6 of 3 local 0\n"), HasSubstr("[1] sum 6 of 3 local 1\n")));
  EXPECT_THAT(one.out, HasSubstr("[2] sum 6 of 3 local 0\n"));
}

const RankFunction parted_ranks("parted", [] {
  try {
    comm::World world = comm::init();
    for (;;) world.group().barrier();
  } catch (const CommError& e) {
    std::cout << "says " << e.what() << std::endl;
    return 1;
  }
});

// Four hosts, two of which cannot reach each other although all reach the store: every rank reports the pair.
// Ranks 1 and 3 are not neighbors on the monitors' ring, ranks 1 and 2 are.
TEST(ToolRun, ReportsPairOfUnreachableHosts) {
  for (const int other : {3, 2}) {
    const SimulatedHosts hosts(4);
    if (!hosts.problem().empty()) GTEST_SKIP() << hosts.problem();
    hosts.disconnect(1, other);
    std::vector<std::unique_ptr<Program>> nodes;
    for (int host = 0; host < 4; ++host) {
      nodes.push_back(std::make_unique<Program>(
          hosts.on(host, {"timeout", "100", PENSTOCK_TOOL, "run", "--ranks=1", "--nodes=4",
                          "--node-rank=" + std::to_string(host), "--grace=5",
                          "--rendezvous=" + SimulatedHosts::address(0) + ":29500", "--", self()}),
          std::vector<std::string>{"PENSTOCK_TEST_RANKS=parted"}));
    }
    for (const auto& node : nodes) {
      const Outcome outcome = node->finish();
      EXPECT_EQ(outcome.code, 1);
      if (other == 3) {
        EXPECT_THAT(outcome.out,
                    ContainsRegex("says .*ranks 1 and 3 cannot reach each other: rank [13] does not "
                                  "answer at 10.78.0.[24] port"));
      } else {  // neighbors on the ring may learn it from the monitor first
        EXPECT_THAT(outcome.out,
                    ContainsRegex("says .*(ranks 1 and 2 cannot reach each other: rank [12] does "
                                  "not answer|cannot be reached by rank 1) at 10.78.0.[23] port"));
      }
    }
  }
}

const RankFunction other_backend_ranks("other_backend", [] {
  try {
    comm::World world = comm::init();
  } catch (const Error& e) {
    std::cout << e.what() << std::endl;
  }
  return 0;
});

// Backends are selected by name; one that this libtorch lacks is rejected with a hint.
TEST(ToolRun, ReportsBackendMissingFromLibtorch) {
  if (backend_available(comm::BackendKind::Nccl)) GTEST_SKIP() << "this libtorch has NCCL";
  RanksOptions options;
  options.environment["PENSTOCK_BACKEND"] = "nccl";
  const RanksOutcome outcome = run_process_ranks("other_backend", 2, options);
  for (const auto& lines : outcome.lines) {
    ASSERT_GE(lines.size(), 2U) << outcome.text();
    EXPECT_THAT(lines[0], HasSubstr("this libtorch was built without NCCL"));
    EXPECT_THAT(lines[1], HasSubstr("hint: set `backend` to gloo"));
  }
}

TEST(ToolRunTorchrun, RanksConnectUnderTorchrun) {
  const char* const python = std::getenv("PENSTOCK_PYTHON");
  const std::string interpreter = python != nullptr ? python : "python3";
  if (shell(interpreter + " -c 'import torch'").code != 0)
    GTEST_SKIP() << "no Python with torch here (PENSTOCK_PYTHON)";
  const ShellResult done = shell("PENSTOCK_TEST_RANKS=hello timeout 120 " + interpreter +
                                 " -m torch.distributed.run --nproc-per-node 2 --master-port " + free_port() +
                                 " --no-python " + self());
  EXPECT_EQ(done.code, 0) << done.output;
  EXPECT_THAT(done.output, AllOf(HasSubstr("sum 3 of 2 local 0"), HasSubstr("sum 3 of 2 local 1")));
}

TEST(ToolRunEnvironment, SetsLogLevelWhichIsOffByDefault) {
  const auto logged = [](const char* level) {
    RanksOptions options;
    if (level != nullptr) options.environment["PENSTOCK_LOG"] = level;
    const RanksOutcome outcome = run_process_ranks("hello", 2, options);
    std::vector<std::string> found;
    for (const auto& lines : outcome.lines) {
      for (const std::string& line : lines)
        if (line.starts_with("penstock")) found.push_back(line);
    }
    return found;
  };
  EXPECT_THAT(logged(nullptr), ::testing::IsEmpty());
  EXPECT_THAT(logged("error"), ::testing::IsEmpty());
  EXPECT_THAT(logged("info"), ::testing::IsSupersetOf({"penstock[0] info: joined a world of 2",
                                                       "penstock[1] info: joined a world of 2"}));
  EXPECT_THAT(logged("loud"), Each(HasSubstr("PENSTOCK_LOG=loud is not a log level (off, error")));
}

TEST(ToolRunEnvironment, Rank0HostsStoreWithoutLauncher) {
  const std::string common =
      "PENSTOCK_TEST_RANKS=hello WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=" + free_port() +
      " timeout 60 ";
  const ShellResult done = shell("( RANK=1 " + common + self() + " & RANK=0 " + common + self() + "; wait )");
  EXPECT_THAT(done.output, AllOf(HasSubstr("sum 3 of 2 local 0"), HasSubstr("sum 3 of 2 local 1")));
}

TEST(ToolDoctor, ReportsHealthyMachine) {
  const ShellResult done = shell(std::string("timeout 100 ") + PENSTOCK_TOOL + " doctor");
  EXPECT_EQ(done.code, 0) << done.output;
  EXPECT_THAT(done.output,
              AllOf(ContainsRegex("ok +libtorch +2\\.13"), ContainsRegex("ok +backends +gloo"),
                    ContainsRegex("machine +[0-9]+ cores"), ContainsRegex("shared memory +.*/dev/shm"),
                    ContainsRegex("clocks +steady clock ticks every"),
                    ContainsRegex("ok +round trip +2 ranks over shm: .* per message, .*/s")));
  const ShellResult json = shell(std::string("timeout 100 ") + PENSTOCK_TOOL + " doctor --json");
  EXPECT_THAT(json.output, HasSubstr("\"ok\":true"));
}

}  // namespace
}  // namespace penstock::test
