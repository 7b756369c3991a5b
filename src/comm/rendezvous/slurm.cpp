// Slurm. srun sets SLURM_STEP_ID for its tasks. The shell of a batch job has SLURM_PROCID=0 and the job's
// SLURM_NTASKS, but no step; an interactive shell of salloc has none of them, or a step with a reserved id.
#include "base/text.h"
#include "comm/rendezvous/cluster_launchers.h"
#include "comm/rendezvous/node_list.h"

#include <penstock/base/error.h>

#include <limits>

namespace penstock::comm {
namespace {

// Ids of steps that are no tasks of srun: batch script, interactive shell, external processes.
constexpr std::int64_t kReservedSteps = 0xfffffff0;
constexpr std::int64_t kMaxId = std::numeric_limits<std::uint32_t>::max();

std::optional<std::int64_t> id_of(const EnvironmentLookup& lookup, const char* name) {
  const auto text = value_of(lookup, name);
  if (!text) return std::nullopt;
  return parse_number(name, *text, kMaxId);
}

std::optional<std::int64_t> job_id(const EnvironmentLookup& lookup) {
  const auto id = id_of(lookup, "SLURM_JOB_ID");
  return id ? id : id_of(lookup, "SLURM_JOBID");
}

std::optional<std::int64_t> step_id(const EnvironmentLookup& lookup) {
  auto id = id_of(lookup, "SLURM_STEP_ID");
  if (!id) id = id_of(lookup, "SLURM_STEPID");
  return id && *id < kReservedSteps ? id : std::nullopt;
}

[[noreturn]] void incomplete_step(const std::string& what) {
  throw UsageError(what, {},
                   "start the program with srun, or export RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
}

// The number of tasks of the step. Under srun both variables agree. They differ if the step's variables come
// from an outer step, for example in a batch script that was submitted from an srun shell.
int step_tasks(const EnvironmentLookup& lookup) {
  const auto step = number_of(lookup, "SLURM_STEP_NUM_TASKS");
  auto job = number_of(lookup, "SLURM_NTASKS");
  if (!job) job = number_of(lookup, "SLURM_NPROCS");
  if (!step && !job)
    incomplete_step("the environment has SLURM_STEP_ID, but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS");
  if (step && job && *step != *job)
    incomplete_step(str_cat("SLURM_STEP_NUM_TASKS=", *step, " contradicts SLURM_NTASKS=", *job,
                            ": this process is not a task of the step that set the first"));
  return step ? *step : *job;
}

// The host of rank 0: loopback if the step has one node, else the first node of its list, where srun puts
// task 0 unless the user distributes tasks by hand.
std::optional<std::string> store_host(const EnvironmentLookup& lookup, int tasks, int rank) {
  auto list = value_of(lookup, "SLURM_STEP_NODELIST");
  if (!list) list = value_of(lookup, "SLURM_JOB_NODELIST");
  if (!list) list = value_of(lookup, "SLURM_NODELIST");
  if (!list) return tasks == 1 ? std::optional<std::string>("127.0.0.1") : std::nullopt;
  const std::vector<std::string> hosts = expand_node_list(*list);
  if (hosts.size() == 1) return "127.0.0.1";
  if (rank == 0 && number_of(lookup, "SLURM_NODEID").value_or(0) != 0) return std::nullopt;
  return hosts.front();
}

}  // namespace

std::optional<LauncherVariables> read_slurm_step(const EnvironmentLookup& lookup) {
  const auto job = job_id(lookup), step = step_id(lookup);
  if (!job || !step) return std::nullopt;
  const auto rank = number_of(lookup, "SLURM_PROCID");
  if (!rank) incomplete_step("the environment has SLURM_STEP_ID, but not SLURM_PROCID");
  if (number_of(lookup, "SLURM_HET_SIZE").value_or(1) > 1)
    incomplete_step("heterogeneous Slurm jobs are not supported (SLURM_HET_SIZE)");
  LauncherVariables found{.launcher = LauncherKind::Slurm,
                          .rank_name = "SLURM_PROCID",
                          .size_name = "SLURM_STEP_NUM_TASKS",
                          .rank = Rank(*rank),
                          .size = step_tasks(lookup)};
  found.local_rank = number_of(lookup, "SLURM_LOCALID");
  found.job = str_cat("Slurm job ", *job, ", step ", *step);
  found.identity = value_of(lookup, "SLURM_CLUSTER_NAME").value_or("") + "/" + found.job + "/" +
                   value_of(lookup, "SLURM_RESTART_COUNT").value_or("0");
  found.host = store_host(lookup, found.size, *rank);
  found.port = port_of_number(static_cast<std::uint64_t>(*job) + 997 * static_cast<std::uint64_t>(*step));
  return found;
}

std::optional<SlurmShell> read_slurm_shell(const EnvironmentLookup& lookup) {
  const auto job = job_id(lookup);
  if (!job) return std::nullopt;
  const int nodes = number_of(lookup, "SLURM_JOB_NUM_NODES").value_or(1);
  auto tasks = number_of(lookup, "SLURM_NTASKS");
  if (!tasks) tasks = number_of(lookup, "SLURM_NPROCS");
  if (!tasks) tasks = number_of(lookup, "SLURM_NTASKS_PER_NODE").value_or(1) * nodes;
  return SlurmShell{str_cat("Slurm job ", *job), *tasks};
}

}  // namespace penstock::comm
