// Chooses the launcher whose variables describe this process.
#include "comm/rendezvous/environment.h"

#include "base/fnv1a.h"
#include "base/text.h"
#include "comm/rendezvous/cluster_launchers.h"

#include <penstock/base/error.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>

namespace penstock::comm {
namespace {

constexpr std::int64_t kMaxRank = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxTimeout = 30L * 86400;  //!< in seconds

std::string required(const EnvironmentLookup& lookup, const char* name) {
  if (auto value = value_of(lookup, name)) return std::move(*value);
  throw UsageError(
      std::string("the environment variable ") + name + " is not set", {},
      "start the program with `penstock run`, torchrun, srun or mpirun, or unset RANK and WORLD_SIZE for a "
      "world of one rank");
}

std::uint16_t port_variable(const EnvironmentLookup& lookup) {
  return static_cast<std::uint16_t>(parse_number("MASTER_PORT", required(lookup, "MASTER_PORT"), 65535));
}

void check_rank(const LaunchedRank& found, const std::string& rank, const std::string& size) {
  if (found.rank.value < found.world_size) return;
  throw UsageError(str_cat(rank, "=", found.rank.value, " is not less than ", size, "=", found.world_size));
}

// A world of one rank needs no store.
bool is_complete(const EnvironmentLookup& lookup) {
  if (!value_of(lookup, "RANK") || !value_of(lookup, "WORLD_SIZE")) return false;
  return value_of(lookup, "WORLD_SIZE") == "1" ||
         (value_of(lookup, "MASTER_ADDR") && value_of(lookup, "MASTER_PORT"));
}

LaunchedRank read_torchrun(const EnvironmentLookup& lookup) {
  LaunchedRank found;
  found.launcher = LauncherKind::Torchrun;
  found.world_size = static_cast<int>(parse_number("WORLD_SIZE", required(lookup, "WORLD_SIZE"), kMaxRank));
  found.rank = Rank(parse_number("RANK", required(lookup, "RANK"), kMaxRank));
  check_rank(found, "RANK", "WORLD_SIZE");
  found.local_rank = number_of(lookup, "LOCAL_RANK").value_or(found.rank.value);
  found.attempt = number_of(lookup, "TORCHELASTIC_RESTART_COUNT").value_or(0);
  found.launcher_hosts_store = value_of(lookup, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  found.job = value_of(lookup, "TORCHELASTIC_RUN_ID") == "penstock" ? "penstock run"
              : value_of(lookup, "TORCHELASTIC_RUN_ID")             ? "torchrun"
                                                                    : "RANK and WORLD_SIZE";
  if (found.world_size == 1 && !value_of(lookup, "MASTER_PORT")) return found;
  found.master_address = required(lookup, "MASTER_ADDR");
  found.master_port = port_variable(lookup);
  return found;
}

// RANK or WORLD_SIZE may be set next to a launcher's variables, often by a job script. They must agree.
void check_agrees(const EnvironmentLookup& lookup, const char* name, int expected, const std::string& other) {
  const auto value = number_of(lookup, name);
  if (!value || *value == expected) return;
  throw UsageError(
      str_cat(name, "=", *value, " contradicts ", other, "=", expected), {},
      std::string("unset ") + name +
          ", or set all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which then take precedence");
}

[[noreturn]] void unknown_store(const LauncherVariables& variables, const char* name) {
  const std::string where = variables.launcher == LauncherKind::Slurm
                                ? "task 0 is not on the first node, or the list of nodes is missing"
                                : "the launcher does not say on which machine rank 0 runs";
  throw UsageError(
      str_cat(variables.job, " has ", variables.size,
              " ranks, but the address of the store is unknown, because ", where, " (", name, " is not set)"),
      {},
      "export MASTER_ADDR (the host of rank 0) and MASTER_PORT (a free port there) to every "
      "rank, for example with `mpirun -x MASTER_ADDR=node01 -x MASTER_PORT=29500`");
}

LaunchedRank launched_by(const LauncherVariables& variables, const EnvironmentLookup& lookup) {
  LaunchedRank found;
  found.launcher = variables.launcher;
  found.rank = variables.rank;
  found.world_size = variables.size;
  check_rank(found, variables.rank_name, variables.size_name);
  check_agrees(lookup, "WORLD_SIZE", found.world_size, variables.size_name);
  check_agrees(lookup, "RANK", found.rank.value, variables.rank_name);
  found.local_rank =
      number_of(lookup, "LOCAL_RANK").value_or(variables.local_rank.value_or(found.rank.value));
  found.job = variables.job;
  found.job_identity = variables.identity;
  if (found.world_size == 1) return found;
  const auto address = value_of(lookup, "MASTER_ADDR");
  if (!address && !variables.host) unknown_store(variables, "MASTER_ADDR");
  found.master_address = address ? *address : *variables.host;
  const bool port_given = value_of(lookup, "MASTER_PORT").has_value();
  if (!port_given && !variables.port) unknown_store(variables, "MASTER_PORT");
  found.master_port = port_given ? port_variable(lookup) : *variables.port;
  return found;
}

std::optional<LauncherVariables> innermost_launcher(const EnvironmentLookup& lookup,
                                                    const AncestorLookup& ancestor) {
  // mpirun starts its daemons with srun in a Slurm job, so the ranks also have Slurm's variables. Slurm's own
  // PMIx plugin sets PMIX_RANK for its tasks.
  if (auto found = read_open_mpi(lookup)) return found;
  if (auto found = read_mpich(lookup, ancestor)) return found;
  if (auto found = read_slurm_step(lookup)) return found;
  return read_pmix(lookup);
}

// A world of one rank is wrong if a launcher started several processes but only a part of its variables
// arrived, for example in a container or through `env`.
void refuse_incomplete_set(const EnvironmentLookup& lookup) {
  struct Sign {
    const char* name;
    const char* missing;
    const char* launcher;  // null for those whose variables are not read
    const char* size = nullptr;
  };
  constexpr const char* explicit_set = "RANK and WORLD_SIZE";
  constexpr const char* elastic = "torchrun or `penstock run`";
  constexpr std::array signs{
      Sign{"SLURM_STEP_ID", "SLURM_JOB_ID", "srun"},
      Sign{"SLURM_STEPID", "SLURM_JOB_ID", "srun"},
      Sign{"SLURM_PROCID", "SLURM_JOB_ID", "srun"},
      Sign{"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE", "mpirun"},
      Sign{"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE", "mpirun"},
      Sign{"MPI_LOCALRANKID", "PMI_RANK and PMI_SIZE", "mpirun"},
      Sign{"MPI_LOCALNRANKS", "PMI_RANK and PMI_SIZE", "mpirun"},
      Sign{"PMIX_NAMESPACE", "PMIX_RANK", "its launcher"},
      Sign{"LOCAL_RANK", explicit_set, elastic},
      Sign{"LOCAL_WORLD_SIZE", explicit_set, elastic, "LOCAL_WORLD_SIZE"},
      Sign{"PET_NNODES", explicit_set, "torchrun"},  // Kubeflow's settings for torchrun
      Sign{"PET_NPROC_PER_NODE", explicit_set, "torchrun"},
      Sign{"PET_NODE_RANK", explicit_set, "torchrun"},
      Sign{"PET_RDZV_ENDPOINT", explicit_set, "torchrun"},
      Sign{"FLUX_TASK_RANK", explicit_set, nullptr, "FLUX_JOB_SIZE"},
      Sign{"PALS_RANKID", explicit_set, nullptr},
      Sign{"MV2_COMM_WORLD_RANK", explicit_set, nullptr, "MV2_COMM_WORLD_SIZE"},
      Sign{"MVP_COMM_WORLD_RANK", explicit_set, nullptr, "MVP_COMM_WORLD_SIZE"},
      Sign{"JSM_NAMESPACE_RANK", explicit_set, nullptr, "JSM_NAMESPACE_SIZE"},
      Sign{"MASTER_ADDR", explicit_set, elastic},
      Sign{"MASTER_PORT", explicit_set, elastic}};
  for (const Sign& sign : signs) {
    if (!value_of(lookup, sign.name) || (sign.size != nullptr && value_of(lookup, sign.size) == "1"))
      continue;
    const std::string what = std::string("the environment has ") + sign.name + ", but not " + sign.missing;
    const std::string single = ", or set RANK=0 and WORLD_SIZE=1 for a single rank";
    if (sign.launcher != nullptr)
      throw UsageError(
          what, {},
          std::string("start the program with ") + sign.launcher + " and pass on all its variables" + single);
    throw UsageError(what, {},
                     std::string("set RANK to the value of ") + sign.name +
                         " on each rank, and the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT on all" +
                         single);
  }
}

}  // namespace

std::int64_t parse_number(const std::string& variable, const std::string& text, std::int64_t most) {
  std::int64_t number = -1;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end && number >= 0 && number <= most) return number;
  throw UsageError(str_cat(variable, "=", quote(text), " is not an integer from 0 to ", most));
}

std::optional<std::string> value_of(const EnvironmentLookup& lookup, const char* name) {
  const char* const text = lookup(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

std::optional<int> number_of(const EnvironmentLookup& lookup, const char* name) {
  const auto text = value_of(lookup, name);
  if (!text) return std::nullopt;
  return static_cast<int>(parse_number(name, *text, kMaxRank));
}

std::uint16_t port_of_number(std::uint64_t number) {
  return static_cast<std::uint16_t>(kFirstJobPort + number % kJobPorts);
}

std::uint16_t port_of_text(std::string_view text) {
  return port_of_number(fnv1a(text));
}

LaunchedRank read_environment(const EnvironmentLookup& lookup, const AncestorLookup& ancestor) {
  if (is_complete(lookup)) return read_torchrun(lookup);
  if (const auto launcher = innermost_launcher(lookup, ancestor)) return launched_by(*launcher, lookup);
  if (lookup("RANK") != nullptr || lookup("WORLD_SIZE") != nullptr) return read_torchrun(lookup);
  LaunchedRank alone;
  if (const auto shell = read_slurm_shell(lookup)) {
    alone.job = shell->job;
    alone.allocated_tasks = shell->tasks;
  } else {
    refuse_incomplete_set(lookup);
  }
  return alone;
}

std::chrono::milliseconds operation_timeout(std::optional<std::chrono::milliseconds> from_program,
                                            const EnvironmentLookup& lookup) {
  if (from_program) return *from_program;
  const char* const seconds = lookup("PENSTOCK_TIMEOUT");
  if (seconds == nullptr) return std::chrono::minutes(5);
  return std::chrono::seconds(parse_number("PENSTOCK_TIMEOUT", seconds, kMaxTimeout));
}

InitOptions with_environment(InitOptions options, const EnvironmentLookup& lookup) {
  const char* const backend = lookup("PENSTOCK_BACKEND");
  if (options.backend == BackendKind::Auto && backend != nullptr) options.backend = parse_backend(backend);
  options.timeout = operation_timeout(options.timeout, lookup);
  return options;
}

const char* look_in_process(const char* name) {
  return std::getenv(name);
}

}  // namespace penstock::comm
