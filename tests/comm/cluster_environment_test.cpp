// The variables of srun and mpirun, as recorded from Slurm 22.05, Open MPI 4.1 and MPICH 4.0: complete,
// incomplete and contradicting sets, and sets of several launchers at once.
#include "comm/rendezvous/job_secret.h"
#include "comm/rendezvous/launcher_process.h"
#include "comm/variables.h"
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <optional>

namespace penstock::comm {
namespace {

using test::error_of;
using test::read;
using test::Variables;
using test::with;
using testing::HasSubstr;

// Task 2 of `srun -N2 -n3`.
Variables srun() {
  return {{"SLURM_CLUSTER_NAME", "test"},
          {"SLURM_JOBID", "4242"},
          {"SLURM_JOB_ID", "4242"},
          {"SLURM_JOB_NODELIST", "node[01-02]"},
          {"SLURM_JOB_NUM_NODES", "2"},
          {"SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NNODES", "2"},
          {"SLURM_NODEID", "1"},
          {"SLURM_NODELIST", "node[01-02]"},
          {"SLURM_NPROCS", "3"},
          {"SLURM_NTASKS", "3"},
          {"SLURM_PROCID", "2"},
          {"SLURM_STEPID", "0"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NODELIST", "node[01-02]"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_NUM_TASKS", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
          {"SLURM_TASKS_PER_NODE", "2,1"},
          {"SLURMD_NODENAME", "node02"},
          {"SLURM_GTIDS", "2"}};
}

// A program in the script of `sbatch -N2 -n4`, without srun.
Variables sbatch_script() {
  return {
      {"SLURM_CLUSTER_NAME", "test"}, {"SLURM_GTIDS", "0"},           {"SLURM_JOBID", "4242"},
      {"SLURM_JOB_ID", "4242"},       {"SLURM_LOCALID", "0"},         {"SLURM_JOB_NODELIST", "node[01-02]"},
      {"SLURM_JOB_NUM_NODES", "2"},   {"SLURM_NNODES", "2"},          {"SLURM_NODEID", "0"},
      {"SLURM_NPROCS", "4"},          {"SLURM_NTASKS", "4"},          {"SLURM_PROCID", "0"},
      {"SLURM_TASK_PID", "199"},      {"SLURM_TASKS_PER_NODE", "3,1"}};
}

// A program in the shell of `salloc -n4`.
Variables salloc_shell() {
  return {{"SLURM_JOBID", "4242"},      {"SLURM_JOB_ID", "4242"}, {"SLURM_JOB_NODELIST", "node01"},
          {"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_NNODES", "1"},    {"SLURM_NODELIST", "node01"},
          {"SLURM_NPROCS", "4"},        {"SLURM_NTASKS", "4"},    {"SLURM_TASKS_PER_NODE", "4"}};
}

// Rank 1 of `mpirun -n 2` on one machine.
Variables open_mpi() {
  return {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"OMPI_COMM_WORLD_NODE_RANK", "1"},
          {"OMPI_UNIVERSE_SIZE", "2"},
          {"OMPI_MCA_ess_base_jobid", "716242945"},
          {"OMPI_MCA_orte_precondition_transports", "dd03fd74d788a21a-02b4759897aa51a8"},
          {"PMIX_NAMESPACE", "716242945"},
          {"PMIX_RANK", "1"}};
}

// Rank 2 of `mpiexec.hydra -n 3` on one machine.
Variables hydra() {
  return {{"PMI_RANK", "2"},
          {"PMI_SIZE", "3"},
          {"PMI_FD", "9"},
          {"MPI_LOCALRANKID", "2"},
          {"MPI_LOCALNRANKS", "3"}};
}

// The ranks of mpirun over several machines.
Variables spread_open_mpi() {
  return with(open_mpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
}
Variables spread_hydra() {
  return with(hydra(), {{"MPI_LOCALNRANKS", "1"}});
}

// A rank of a launcher that sets only the variables of PMIx.
Variables pmix() {
  return {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-head-12@1"}};
}

struct GoodSet {
  const char* name;
  Variables variables;
  LauncherKind launcher;
  int rank, world_size, local_rank;
  std::string address;      // of the store
  std::optional<int> port;  // nullopt: derived from a hash
};

std::vector<GoodSet> good_sets() {
  using Kind = LauncherKind;
  const Variables head{{"MASTER_ADDR", "head"}};
  // mpirun in a Slurm job starts its daemons with srun, and the ranks inherit the variables of that step.
  const Variables daemon =
      with(srun(), {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "4"}});
  return {
      {"srun", srun(), Kind::Slurm, 2, 3, 0, "node01", 24242},
      {"srun on one node", with(srun(), {{"SLURM_STEP_NODELIST", "node02"}, {"SLURM_STEP_NUM_NODES", "1"}}),
       Kind::Slurm, 2, 3, 0, "127.0.0.1", 24242},
      {"srun with a master address", with(srun(), head), Kind::Slurm, 2, 3, 0, "head", 24242},
      {"srun with a master port", with(srun(), {{"MASTER_PORT", "5000"}, {"WORLD_SIZE", "3"}}), Kind::Slurm,
       2, 3, 0, "node01", 5000},
      {"srun with a single task",
       with(srun(), {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}}),
       Kind::Slurm, 0, 1, 0, "", std::nullopt},
      {"srun --mpi=pmix", with(srun(), {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.4242.0"}}),
       Kind::Slurm, 2, 3, 0, "node01", 24242},
      {"srun --mpi=pmi2", with(srun(), {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"PMI_JOBID", "4242.0"}}),
       Kind::Slurm, 2, 3, 0, "node01", 24242},
      {"Open MPI", open_mpi(), Kind::OpenMpi, 1, 2, 1, "127.0.0.1", std::nullopt},
      {"Open MPI on several machines", with(spread_open_mpi(), head), Kind::OpenMpi, 1, 2, 1, "head",
       std::nullopt},
      {"Open MPI in a Slurm job", with(srun(), open_mpi()), Kind::OpenMpi, 1, 2, 1, "127.0.0.1",
       std::nullopt},
      {"MPICH", hydra(), Kind::Mpich, 2, 3, 2, "127.0.0.1", 20000 + test::kDaemon},
      {"MPICH on several machines", with(spread_hydra(), {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "77"}}),
       Kind::Mpich, 2, 3, 2, "head", 77},
      {"MPICH in a Slurm job", with(daemon, hydra()), Kind::Mpich, 2, 3, 2, "127.0.0.1",
       20000 + test::kDaemon},
      {"PMIx with a given size", with(pmix(), {{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "head"}}), Kind::Pmix, 1,
       2, 1, "head", std::nullopt},
  };
}

TEST(CommClusterEnvironment, ReadsCompleteSets) {
  for (const GoodSet& set : good_sets()) {
    SCOPED_TRACE(set.name);
    const LaunchedRank found = read(set.variables);
    EXPECT_EQ(found.launcher, set.launcher);
    EXPECT_EQ(found.rank, Rank(set.rank));
    EXPECT_EQ(found.world_size, set.world_size);
    EXPECT_EQ(found.local_rank, set.local_rank);
    EXPECT_EQ(found.master_address, set.address);
    EXPECT_FALSE(found.launcher_hosts_store);
    if (set.port) {
      EXPECT_EQ(found.master_port, *set.port);
    } else if (set.world_size > 1) {
      EXPECT_GE(found.master_port, 20000);
      EXPECT_LT(found.master_port, 32000);
    }
  }
}

TEST(CommClusterEnvironment, IdentifiesJob) {
  const LaunchedRank slurm = read(srun());
  EXPECT_EQ(to_string(slurm), "Slurm job 4242, step 0: rank 2 of 3, store at node01:24242");
  // 20000 + (4242 + 997 * 9) mod 12000, and the older names of the variables.
  const LaunchedRank other = read(with(srun(), {{"SLURM_STEP_ID", ""},
                                                {"SLURM_STEPID", "9"},
                                                {"SLURM_JOB_ID", ""},
                                                {"SLURM_STEP_NUM_TASKS", ""},
                                                {"SLURM_NTASKS", ""}}));
  EXPECT_EQ(to_string(other), "Slurm job 4242, step 9: rank 2 of 3, store at node01:21215");
  EXPECT_NE(other.job_identity, slurm.job_identity);

  const LaunchedRank mpi = read(open_mpi());
  EXPECT_EQ(mpi.job, "Open MPI job 716242945");
  EXPECT_THAT(mpi.job_identity, HasSubstr("dd03fd74d788a21a"));
  EXPECT_EQ(mpi.master_port, read(with(open_mpi(), {{"PMIX_NAMESPACE", ""}})).master_port);
  EXPECT_NE(mpi.master_port, read(with(open_mpi(), {{"PMIX_NAMESPACE", "716242946"}})).master_port);

  EXPECT_EQ(to_string(read(hydra())), "MPICH job of process 4711: rank 2 of 3, store at 127.0.0.1:24711");
}

TEST(CommClusterEnvironment, ProgramInBatchScriptIsNotTask) {
  const LaunchedRank found = read(sbatch_script());
  EXPECT_EQ(found.launcher, LauncherKind::None);
  EXPECT_EQ(found.world_size, 1);
  EXPECT_EQ(found.allocated_tasks, 4);
  EXPECT_EQ(to_string(found), "Slurm job 4242: the shell of an allocation of 4 tasks, not a task of srun");
  EXPECT_EQ(read(salloc_shell()).allocated_tasks, 4);
  // The interactive step of salloc has a reserved id.
  const LaunchedRank step =
      read(with(salloc_shell(),
                {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}));
  EXPECT_EQ(step.launcher, LauncherKind::None);
  EXPECT_EQ(step.allocated_tasks, 4);
}

TEST(CommClusterEnvironment, CountsTasksOfAllocationWithoutTaskOption) {
  const Variables no_count = with(sbatch_script(), {{"SLURM_NTASKS", ""}, {"SLURM_NPROCS", ""}});
  EXPECT_EQ(read(no_count).allocated_tasks, 2);  // srun starts one task per node
  EXPECT_EQ(read(with(no_count, {{"SLURM_NTASKS_PER_NODE", "4"}})).allocated_tasks, 8);
  EXPECT_EQ(read(with(no_count, {{"SLURM_JOB_NUM_NODES", "1"}})).allocated_tasks, 1);
  EXPECT_EQ(read(with(sbatch_script(), {{"SLURM_NTASKS", "1"}})).allocated_tasks, 1);
}

TEST(CommClusterEnvironment, CompleteTorchrunSetTakesPrecedence) {
  const Variables set{{"RANK", "5"}, {"WORLD_SIZE", "6"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "9"}};
  for (const Variables& outer : {srun(), sbatch_script(), open_mpi(), hydra()}) {
    const LaunchedRank found = read(with(outer, set));
    EXPECT_EQ(found.launcher, LauncherKind::Torchrun);
    EXPECT_EQ(found.rank, Rank(5));
    EXPECT_EQ(found.world_size, 6);
  }
}

struct BadSet {
  Variables variables;
  std::vector<std::string> parts;  // of the message
};

TEST(CommClusterEnvironment, IncompleteOrContradictingSetsAreErrors) {
  const std::vector<BadSet> sets{
      {{{"WORLD_SIZE", "4"}}, {"RANK is not set", "srun"}},
      {with(srun(), {{"SLURM_PROCID", ""}}), {"not SLURM_PROCID", "start the program with srun"}},
      {with(srun(), {{"SLURM_PROCID", "3"}}), {"SLURM_PROCID=3 is not less than SLURM_STEP_NUM_TASKS=3"}},
      {with(srun(), {{"SLURM_PROCID", "x"}}), {"SLURM_PROCID='x'"}},
      {with(srun(), {{"SLURM_NTASKS", ""}, {"SLURM_NPROCS", ""}, {"SLURM_STEP_NUM_TASKS", ""}}),
       {"neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS"}},
      {with(srun(), {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}),
       {"SLURM_STEP_NUM_TASKS=1 contradicts SLURM_NTASKS=3"}},
      {with(srun(), {{"SLURM_HET_SIZE", "2"}}), {"heterogeneous"}},
      {with(srun(), {{"SLURM_STEP_NODELIST", "node[1-"}}), {"'node[1-' is not a list of nodes"}},
      {with(srun(), {{"SLURM_PROCID", "0"}}), {"task 0 is not on the first node", "export MASTER_ADDR"}},
      {with(srun(), {{"WORLD_SIZE", "8"}}),
       {"WORLD_SIZE=8 contradicts SLURM_STEP_NUM_TASKS=3", "unset WORLD_SIZE"}},
      {with(srun(), {{"RANK", "0"}}), {"RANK=0 contradicts SLURM_PROCID=2"}},
      {with(open_mpi(), {{"OMPI_COMM_WORLD_RANK", ""}}), {"not OMPI_COMM_WORLD_RANK", "mpirun"}},
      {with(open_mpi(), {{"OMPI_COMM_WORLD_SIZE", ""}}), {"not OMPI_COMM_WORLD_SIZE"}},
      {with(open_mpi(), {{"OMPI_COMM_WORLD_RANK", "2"}}), {"OMPI_COMM_WORLD_RANK=2 is not less than"}},
      {with(hydra(), {{"PMI_SIZE", ""}}), {"not PMI_SIZE"}},
      {with(hydra(), {{"PMI_RANK", ""}}), {"not PMI_RANK"}},
      {with(hydra(), {{"WORLD_SIZE", "2"}}), {"WORLD_SIZE=2 contradicts PMI_SIZE=3"}},
      {pmix(), {"PMIX_RANK", "WORLD_SIZE"}},
      {spread_open_mpi(), {"MASTER_ADDR is not set", "mpirun -x MASTER_ADDR="}},
      {spread_hydra(), {"MASTER_ADDR is not set"}},
      {with(spread_hydra(), {{"MASTER_ADDR", "head"}}), {"MASTER_PORT is not set"}},
      {{{"SLURM_STEP_ID", "0"}}, {"has SLURM_STEP_ID, but not SLURM_JOB_ID", "srun", "RANK=0"}},
      {{{"SLURM_STEPID", "0"}}, {"has SLURM_STEPID, but not SLURM_JOB_ID"}},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}, {"has SLURM_PROCID, but not SLURM_JOB_ID"}},
      {with(srun(), {{"SLURM_JOB_ID", ""}, {"SLURM_JOBID", ""}}),
       {"has SLURM_STEP_ID, but not SLURM_JOB_ID"}},
      {{{"LOCAL_RANK", "0"}}, {"has LOCAL_RANK, but not RANK and WORLD_SIZE", "set RANK=0 and WORLD_SIZE=1"}},
      {{{"LOCAL_WORLD_SIZE", "2"}}, {"has LOCAL_WORLD_SIZE, but not RANK and WORLD_SIZE", "torchrun"}},
      {with(open_mpi(), {{"OMPI_COMM_WORLD_RANK", ""}, {"OMPI_COMM_WORLD_SIZE", ""}, {"PMIX_RANK", ""}}),
       {"has OMPI_COMM_WORLD_LOCAL_RANK, but not OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE", "mpirun"}},
      {{{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}, {"has OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {{{"MPI_LOCALRANKID", "0"}}, {"has MPI_LOCALRANKID, but not PMI_RANK and PMI_SIZE"}},
      {{{"MPI_LOCALNRANKS", "3"}}, {"has MPI_LOCALNRANKS"}},
      {{{"PMIX_NAMESPACE", "prterun-head-12@1"}}, {"has PMIX_NAMESPACE, but not PMIX_RANK"}},
      {{{"MASTER_ADDR", "head"}}, {"has MASTER_ADDR, but not RANK and WORLD_SIZE", "torchrun", "RANK=0"}},
      {{{"MASTER_PORT", "29500"}}, {"has MASTER_PORT, but not RANK and WORLD_SIZE"}},
      {{{"PET_NNODES", "1:4"}}, {"has PET_NNODES, but not RANK", "start the program with torchrun"}},
      {{{"PET_NPROC_PER_NODE", "auto"}}, {"has PET_NPROC_PER_NODE"}},
      {{{"PET_NODE_RANK", "0"}}, {"has PET_NODE_RANK"}},
      {{{"PET_RDZV_ENDPOINT", "head:29500"}}, {"has PET_RDZV_ENDPOINT"}},
      {{{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "2"}},
       {"has FLUX_TASK_RANK, but not RANK", "set RANK to the value of FLUX_TASK_RANK", "RANK=0"}},
      {{{"PALS_RANKID", "1"}}, {"set RANK to the value of PALS_RANKID on each rank"}},
      {{{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "2"}}, {"has MV2_COMM_WORLD_RANK"}},
      {{{"MVP_COMM_WORLD_RANK", "0"}, {"MVP_COMM_WORLD_SIZE", "2"}}, {"has MVP_COMM_WORLD_RANK"}},
      {{{"JSM_NAMESPACE_RANK", "0"}, {"JSM_NAMESPACE_SIZE", "2"}}, {"has JSM_NAMESPACE_RANK"}}};
  for (const BadSet& set : sets)
    for (const std::string& part : set.parts) EXPECT_THAT(error_of(set.variables), HasSubstr(part));
}

// The shells between a launcher's daemon and a rank have the variable in their environment.
TEST(CommLauncherProcess, IsNearestAncestorWithoutVariable) {
  EXPECT_EQ(ancestor_without("PENSTOCK_TEST_NO_SUCH_VARIABLE", getppid()), getppid());
  const test::TempDir dir;
  const std::string pid = dir / "pid", stop = dir / "stop";
  ASSERT_EQ(mkfifo(pid.c_str(), 0600) + mkfifo(stop.c_str(), 0600), 0);
  test::Program shells({"env", "PENSTOCK_TEST_ANCESTOR=1", "sh", "-c",
                        "sh -c 'echo $$ > " + pid + "; read line < " + stop + "'; true"});
  std::int64_t inner = 0;
  std::ifstream(pid) >> inner;
  ASSERT_GT(inner, 0);
  EXPECT_NE(inner, shells.pid());
  EXPECT_EQ(ancestor_without("PENSTOCK_TEST_ANCESTOR", inner), getpid());
  EXPECT_EQ(ancestor_without("PENSTOCK_TEST_NO_SUCH_VARIABLE", inner), inner);
  std::ofstream(stop) << "end\n";
  EXPECT_EQ(shells.finish().code, 0);
}

TEST(CommJobSecret, ComesFromVariableThenFileThenJob) {
  const test::TempDir dir;
  std::ofstream(dir / "token") << "0123456789abcdef";
  const LaunchedRank rank = read(srun());
  const auto secret = [&](const Variables& variables, const LaunchedRank& of) {
    return read_job_secret(test::lookup_in(variables), of).text();
  };
  const std::string given = "000102030405060708090a0b0c0d0e0f";
  EXPECT_EQ(secret({{kSecretVariable, given}, {kTokenFileVariable, dir / "token"}}, rank), given);
  EXPECT_EQ(secret({{kTokenFileVariable, dir / "token"}}, rank), JobSecret::from_file(dir / "token").text());
  EXPECT_EQ(secret({}, rank), secret({}, read(with(srun(), {{"SLURM_PROCID", "1"}}))));
  EXPECT_NE(secret({}, rank), secret({}, read(with(srun(), {{"SLURM_JOB_ID", "4243"}}))));
  EXPECT_NE(secret({}, rank), secret({}, read(with(srun(), {{"SLURM_RESTART_COUNT", "1"}}))));
  EXPECT_EQ(secret({}, read({})), "");
}

}  // namespace
}  // namespace penstock::comm
