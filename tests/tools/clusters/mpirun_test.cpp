// Programs and `penstock train` as ranks of mpirun, if Open MPI or MPICH is installed. All traffic stays on
// the loopback interface.
#include "tools/clusters/example_losses.h"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace penstock::test {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

struct Mpi {
  const char* name;
  Words command;      // without the number of ranks
  const char* job;    // how the detected launcher is described
  const char* probe;  // the program that must be installed
};

const std::vector<Mpi>& launchers() {
  static const std::vector<Mpi> all{
      {"OpenMpi",
       {"mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "--mca", "oob_tcp_if_include", "lo",
        "--mca", "btl", "self"},
       "Open MPI job ",
       "mpirun.openmpi"},
      {"Mpich", {"mpiexec.hydra", "-iface", "lo"}, "MPICH job of process ", "mpiexec.hydra"}};
  return all;
}

const Words kTrain{PENSTOCK_TOOL, "train",        "--steps", "4",        "--batch",
                   "8",           "--seq",        "16",      "--layers", "2",
                   "--width",     "32",           "--heads", "2",        "--sample",
                   "0",           "--eval-every", "0",       "--data",   PENSTOCK_SOURCE_DIR "/README.md"};

class ToolMpirun : public ::testing::TestWithParam<Mpi> {
 protected:
  void SetUp() override {
    if (run_program({"sh", "-c", std::string("command -v ") + GetParam().probe}).code != 0)
      GTEST_SKIP() << GetParam().probe << " is not installed";
  }

  static Words command(int ranks, const Words& program) {
    Words words{"timeout", "-k", "5", "120"};
    words.insert(words.end(), GetParam().command.begin(), GetParam().command.end());
    words.insert(words.end(), {"-n", std::to_string(ranks)});
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }
  static Words settings() {
    return {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMP_NUM_THREADS=1",
            "PENSTOCK_LOG=info"};
  }
  static Outcome mpirun(int ranks, const Words& program) {
    return run_program(command(ranks, program), settings());
  }
};

TEST_P(ToolMpirun, StartsRanksOfProgram) {
  for (const int ranks : {2, 4}) {
    const Outcome outcome = mpirun(ranks, {kDdp});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_losses(outcome.out, losses_alone());
    const std::string last = ": rank " + std::to_string(ranks - 1) + " of " + std::to_string(ranks);
    EXPECT_THAT(outcome.err, ::testing::ContainsRegex(GetParam().job + std::string("[0-9]+") + last));
  }
}

// A program says once what it found, unless the level of the log was chosen. `penstock train` prints the line
// itself.
TEST_P(ToolMpirun, Rank0NamesLauncher) {
  const auto lines = [](const std::string& level, const Words& program) {
    Words settings = ToolMpirun::settings();
    settings.back() = "PENSTOCK_LOG=" + level;
    const Outcome outcome = run_program(command(2, program), settings);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return count(outcome.err, std::string("launcher: ") + GetParam().job);
  };
  EXPECT_EQ(lines("", {kDdp}), 1);
  EXPECT_EQ(lines("off", {kDdp}), 0);
  EXPECT_EQ(lines("info", {kDdp}), 2);
  EXPECT_EQ(lines("", kTrain), 0);
}

TEST_P(ToolMpirun, ConcurrentJobsDoNotConnect) {
  const Words settings = this->settings();
  Program one(command(2, {kDdp}), settings), other(command(4, {kDdp}), settings);
  for (Program* const job : {&one, &other}) {
    const Outcome outcome = job->finish();
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_losses(outcome.out, losses_alone());
  }
}

TEST_P(ToolMpirun, ReportsOccupiedPort) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, any, size) + listen(listener, 8) + getsockname(listener, any, &size), 0);
  Words settings = this->settings();
  settings.push_back("MASTER_PORT=" + std::to_string(ntohs(address.sin_port)));
  const Outcome outcome = run_program(command(2, {kDdp}), settings);
  close(listener);
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("cannot host the store at 127.0.0.1:"));
  EXPECT_THAT(outcome.err, HasSubstr("set MASTER_PORT to a free port"));
}

// A script between the launcher and the program must not change which job the ranks find.
TEST_P(ToolMpirun, StartsRanksThroughScript) {
  const Outcome outcome = mpirun(2, {"sh", "-c", kDdp + "; exit $?"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_losses(outcome.out, losses_alone());
}

TEST_P(ToolMpirun, TrainsAsRanks) {
  Words alone = kTrain;
  alone.insert(alone.end(), {"--ranks", "2"});
  const Outcome expected = run_program(alone);
  ASSERT_EQ(expected.code, 0) << expected.err;
  const Outcome outcome = mpirun(2, kTrain);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_losses(outcome.out, losses_in(expected.out));
  EXPECT_EQ(losses_in(outcome.out).size(), 4U);
  EXPECT_EQ(count(outcome.out, std::string("launcher: ") + GetParam().job), 1) << outcome.out;
  EXPECT_EQ(count(outcome.out, "# resolved configuration"), 1);
}

TEST_P(ToolMpirun, PrintsErrorOfAllRanksOnce) {
  Words wrong = kTrain;
  wrong.back() = "/no/such/file.txt";
  const Outcome absent = mpirun(4, wrong);
  EXPECT_EQ(absent.code, 2) << absent.err;
  EXPECT_EQ(count(absent.err, "penstock: error:"), 1) << absent.err;
  EXPECT_THAT(absent.err, HasSubstr("/no/such/file.txt"));
  Words counts = kTrain;
  counts.insert(counts.end(), {"--pp", "3"});
  const Outcome other = mpirun(4, counts);
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_EQ(count(other.err, "penstock: error:"), 1) << other.err;
  EXPECT_THAT(other.err, HasSubstr("is 3, but the launcher started 4 ranks"));
}

TEST_P(ToolMpirun, RejectsEvalAsRank) {
  const Outcome outcome =
      mpirun(2, {PENSTOCK_TOOL, "eval", "m.pt2", "--input", "x.safetensors", "--output", "y.safetensors"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("penstock eval starts its own ranks"));
}

INSTANTIATE_TEST_SUITE_P(With, ToolMpirun, ::testing::ValuesIn(launchers()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace penstock::test
