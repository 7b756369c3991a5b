// Programs and `penstock train` under a real Slurm: two slurmd on this machine, in namespaces of their own.
// Skipped if Slurm is not installed or cannot start.
#include "comm/rendezvous/node_list.h"
#include "tools/clusters/example_losses.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

namespace penstock::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Runs a shell script on the cluster. `skipped` holds the reason if the cluster does not start.
struct ClusterRun {
  Outcome outcome;
  std::string skipped;
};

ClusterRun on_cluster(const std::string& script) {
  const TempDir dir;
  std::ofstream(dir / "script.sh") << "cd " << dir.path() << "\n" << script;
  ClusterRun run;
  run.outcome =
      run_program({"timeout", "-k", "5", "300", PENSTOCK_SOURCE_DIR "/tests/tools/clusters/slurm_cluster.sh",
                   dir / "slurm", "bash", dir / "script.sh"},
                  {"OMP_NUM_THREADS=1"});
  if (run.outcome.code == 77) run.skipped = run.outcome.out;
  return run;
}

TEST(ToolSlurm, SrunStartsRanksOfProgram) {
  const ClusterRun run = on_cluster("PENSTOCK_LOG=info srun -K -N2 -n2 " + kDdp +
                                    "\necho ====\nsrun -K -N2 -n4 " + kDdp + "\necho ====\nsrun -n1 " + kDdp);
  if (!run.skipped.empty()) GTEST_SKIP() << run.skipped;
  ASSERT_EQ(run.outcome.code, 0) << run.outcome.err;
  std::vector<double> expected;
  for (int i = 0; i < 3; ++i) expected.insert(expected.end(), losses_alone().begin(), losses_alone().end());
  expect_losses(run.outcome.out, expected);
  // Job 1: port 20000 + 1.
  EXPECT_THAT(run.outcome.err, HasSubstr("Slurm job 1, step 0: rank 1 of 2, store at node01:20001"));
  // Without PENSTOCK_LOG, rank 0 of several says what it found.
  EXPECT_EQ(count(run.outcome.err, "launcher: Slurm job 2, step 0: rank 0 of 4"), 1) << run.outcome.err;
  EXPECT_EQ(count(run.outcome.err, "launcher: "), 3) << run.outcome.err;
}

// The PMIx plugin adds variables that mpirun sets, too.
TEST(ToolSlurm, SrunWithPmixStartsRanksOfProgram) {
  const ClusterRun run = on_cluster(
      "srun --mpi=list 2>&1 | grep -q pmix || exit 3\n"
      "srun --mpi=pmix -n1 sh -c 'echo pmix rank $PMIX_RANK' 2> probe\n"
      "! grep 'can not load PMIx library' probe || exit 4\n"
      "PENSTOCK_LOG=info srun --mpi=pmix -K -N2 -n2 " +
      kDdp);
  if (!run.skipped.empty()) GTEST_SKIP() << run.skipped;
  if (run.outcome.code == 3) GTEST_SKIP() << "srun --mpi=list does not contain pmix";
  if (run.outcome.code == 4) GTEST_SKIP() << "srun finds no libpmix.so (Debian's libpmix-dev)";
  ASSERT_EQ(run.outcome.code, 0) << run.outcome.err;
  EXPECT_THAT(run.outcome.out, HasSubstr("pmix rank 0"));
  expect_losses(run.outcome.out, losses_alone());
  EXPECT_THAT(run.outcome.err, HasSubstr("Slurm job 2, step 0: rank 1 of 2, store at node01:20002"));
}

const std::string kTrain = std::string(PENSTOCK_TOOL) +
                           " train --steps 4 --batch 8 --seq 16 --layers 4 --width 32 --heads 2 --sample 0 "
                           "--eval-every 0 --data " PENSTOCK_SOURCE_DIR "/README.md";

TEST(ToolSlurm, TrainsAsTasksOfSrun) {
  const ClusterRun run =
      on_cluster("export PENSTOCK_JOB_SECRET=000102030405060708090a0b0c0d0e0f\nsrun -K -N2 -n2 " + kTrain +
                 "; srun -N2 -n2 " + kTrain + " --pp 3; echo code $?");
  if (!run.skipped.empty()) GTEST_SKIP() << run.skipped;
  const Outcome expected = run_program({"sh", "-c", kTrain + " --ranks 2"});
  ASSERT_EQ(expected.code, 0) << expected.err;
  expect_losses(run.outcome.out, losses_in(expected.out));
  EXPECT_EQ(count(run.outcome.out, "launcher: Slurm job 1, step 0: rank 0 of 2"), 1) << run.outcome.out;
  EXPECT_THAT(run.outcome.out, HasSubstr("code 2\n"));
  EXPECT_EQ(count(run.outcome.err, "penstock: error:"), 1) << run.outcome.err;
}

// In the shell of a job, the ranks are local. The other tasks of the job stay idle, which is worth a warning.
TEST(ToolSlurm, TrainingInShellOfJobWarns) {
  const ClusterRun run =
      on_cluster("printf '#!/bin/bash\n" + kTrain + " --ranks 2 2>&1; echo code $?\n' > job.sh\n" +
                 "sbatch -W -N2 -n4 -o job.out job.sh; cat job.out");
  if (!run.skipped.empty()) GTEST_SKIP() << run.skipped;
  EXPECT_THAT(run.outcome.out, HasSubstr("code 0\n"));
  EXPECT_EQ(count(run.outcome.out, "warning: Slurm job 1: the shell of an allocation of 4 tasks"), 1);
  EXPECT_THAT(run.outcome.out, HasSubstr("`srun penstock train …` uses all tasks"));
}

// srun without --kill-on-bad-exit leaves the other tasks running. They notice the failure, and one reports
// it.
TEST(ToolSlurm, ReportsKilledTaskOnce) {
  const ClusterRun run =
      on_cluster("PENSTOCK_FAULT='kill rank=1 step=2' srun -K0 -N2 -n4 " + kTrain + "; echo code $?");
  if (!run.skipped.empty()) GTEST_SKIP() << run.skipped;
  EXPECT_EQ(count(run.outcome.err, "penstock: error:"), 1) << run.outcome.err;
  EXPECT_THAT(run.outcome.err, HasSubstr("rank 1 failed: its process ended"));
  EXPECT_EQ(losses_in(run.outcome.out).size(), 1U) << run.outcome.out;
  EXPECT_THAT(run.outcome.out, Not(HasSubstr("code 0")));
}

TEST(ToolSlurm, BatchScriptIsNotTask) {
  const ClusterRun run = on_cluster("cat > job.sh <<'JOB'\n#!/bin/bash\n" + kDdp + " 2>&1; echo plain $?\n" +
                                    PENSTOCK_TOOL + " doctor 2>&1 | grep launcher\nsrun -K " + kDdp +
                                    "; echo srun $?\nRANK=0 WORLD_SIZE=1 " + kDdp +
                                    "; echo single $?\nJOB\n"
                                    "sbatch -W -N2 -n4 -o job.out job.sh; cat job.out\n"
                                    "printf '#!/bin/bash\\n" +
                                    kDdp +
                                    "; echo one task $?\\n' > one.sh\n"
                                    "sbatch -W -n1 -o one.out one.sh; cat one.out\nsalloc -n4 " +
                                    kDdp + "; echo salloc $?\n");
  if (!run.skipped.empty()) GTEST_SKIP() << run.skipped;
  const std::string& out = run.outcome.out;
  EXPECT_THAT(out, AllOf(HasSubstr("the shell of an allocation of 4 tasks, not a task of srun"),
                         HasSubstr("start the program with srun"), Not(HasSubstr("plain 0"))));
  EXPECT_THAT(out,
              ::testing::ContainsRegex("note +launcher +Slurm job 1: the shell of an allocation of 4 tasks"));
  EXPECT_THAT(out, AllOf(HasSubstr("srun 0"), HasSubstr("single 0"), HasSubstr("one task 0")));
  EXPECT_THAT(out, AllOf(HasSubstr("salloc "), Not(HasSubstr("salloc 0"))));
  std::vector<double> expected;  // srun, single, one task
  for (int i = 0; i < 3; ++i) expected.insert(expected.end(), losses_alone().begin(), losses_alone().end());
  expect_losses(out, expected);
}

// The ranks of an mpirun inside a Slurm job have the variables of both.
TEST(ToolSlurm, MpirunInJobIsInnermostLauncher) {
  const ClusterRun run = on_cluster(
      "command -v mpiexec.hydra > /dev/null || exit 3\n"
      "cat > job.sh <<'JOB'\n#!/bin/bash\nexport PENSTOCK_LOG=info\nmpiexec.hydra -n 2 " +
      kDdp + " 2>&1; echo code $?\nJOB\nsbatch -W -N1 -n4 -o job.out job.sh; cat job.out");
  if (!run.skipped.empty()) GTEST_SKIP() << run.skipped;
  if (run.outcome.code == 3) GTEST_SKIP() << "mpiexec.hydra is not installed";
  EXPECT_THAT(run.outcome.out, AllOf(HasSubstr("MPICH job of process"), HasSubstr("code 0")));
  expect_losses(run.outcome.out, losses_alone());
}

TEST(ToolSlurm, NodeListsMatchScontrol) {
  const std::vector<std::string> lists{"node[01-03,7],gpu1", "r[1-2]n[3,5]", "n[9-11]",  "n[098-101]",
                                       "a,b,c[0-1]",         "x[007]",       "x[1,3-5]", "b2,a1"};
  std::string script;
  for (const std::string& list : lists) script += "scontrol show hostnames '" + list + "' | paste -sd' '\n";
  const ClusterRun run = on_cluster(script);
  if (!run.skipped.empty()) GTEST_SKIP() << run.skipped;
  std::istringstream lines(run.outcome.out);
  for (const std::string& list : lists) {
    std::string line, expanded;
    ASSERT_TRUE(std::getline(lines, line));
    for (const std::string& host : comm::expand_node_list(list))
      expanded += (expanded.empty() ? "" : " ") + host;
    EXPECT_EQ(expanded, line) << list;
  }
}

}  // namespace
}  // namespace penstock::test
