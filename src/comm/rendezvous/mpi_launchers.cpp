// mpirun and mpiexec of Open MPI and of MPICH (Hydra; also Intel MPI), and PMIx without either.
#include "base/text.h"
#include "comm/rendezvous/cluster_launchers.h"

#include <penstock/base/error.h>

namespace penstock::comm {
namespace {

int required_number(const EnvironmentLookup& lookup, const char* name, const char* because) {
  if (const auto number = number_of(lookup, name)) return *number;
  throw UsageError(std::string("the environment has ") + because + ", but not " + name, {},
                   "start the program with mpirun, or export RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
}

// mpirun does not pass the host of rank 0 to the ranks, so it is known only if all ranks are on one machine.
std::optional<std::string> loopback_if(bool one_host) {
  return one_host ? std::optional<std::string>("127.0.0.1") : std::nullopt;
}

// `srun --mpi=pmi2` sets PMI variables too. The daemons of Hydra set MPI_LOCALRANKID; srun does not.
bool set_by_srun(const EnvironmentLookup& lookup) {
  return !value_of(lookup, "MPI_LOCALRANKID") && value_of(lookup, "SLURM_STEP_ID") &&
         value_of(lookup, "PMI_RANK") == value_of(lookup, "SLURM_PROCID") &&
         value_of(lookup, "PMI_SIZE") == value_of(lookup, "SLURM_STEP_NUM_TASKS");
}

}  // namespace

std::optional<LauncherVariables> read_open_mpi(const EnvironmentLookup& lookup) {
  const char* const rank = "OMPI_COMM_WORLD_RANK";
  const char* const size = "OMPI_COMM_WORLD_SIZE";
  if (!value_of(lookup, rank) && !value_of(lookup, size)) return std::nullopt;
  LauncherVariables found{.launcher = LauncherKind::OpenMpi,
                          .rank_name = rank,
                          .size_name = size,
                          .rank = Rank(required_number(lookup, rank, size)),
                          .size = required_number(lookup, size, rank)};
  found.local_rank = number_of(lookup, "OMPI_COMM_WORLD_LOCAL_RANK");
  found.host = loopback_if(number_of(lookup, "OMPI_COMM_WORLD_LOCAL_SIZE") == found.size);
  found.job = "Open MPI";
  auto id = value_of(lookup, "PMIX_NAMESPACE");
  if (!id) id = value_of(lookup, "OMPI_MCA_ess_base_jobid");
  if (!id) return found;
  found.job += " job " + *id;
  found.port = port_of_text(*id);
  // A random number of mpirun (up to version 4), which only the ranks know.
  found.identity = found.job + "/" + value_of(lookup, "OMPI_MCA_orte_precondition_transports").value_or("");
  return found;
}

std::optional<LauncherVariables> read_mpich(const EnvironmentLookup& lookup, const AncestorLookup& ancestor) {
  const char* const rank = "PMI_RANK";
  const char* const size = "PMI_SIZE";
  if ((!value_of(lookup, rank) && !value_of(lookup, size)) || set_by_srun(lookup)) return std::nullopt;
  LauncherVariables found{.launcher = LauncherKind::Mpich,
                          .rank_name = rank,
                          .size_name = size,
                          .rank = Rank(required_number(lookup, rank, size)),
                          .size = required_number(lookup, size, rank)};
  found.job = "MPICH";
  found.local_rank = number_of(lookup, "MPI_LOCALRANKID");
  const bool one_host = number_of(lookup, "MPI_LOCALNRANKS") == found.size;
  found.host = loopback_if(one_host);
  if (!one_host) return found;  // each machine has its own daemon, and nothing else identifies the job
  const std::int64_t daemon = ancestor(rank);
  found.job += str_cat(" job of process ", daemon);
  found.identity = found.job;
  found.port = port_of_number(static_cast<std::uint64_t>(daemon));
  return found;
}

std::optional<LauncherVariables> read_pmix(const EnvironmentLookup& lookup) {
  const auto rank = number_of(lookup, "PMIX_RANK");
  if (!rank) return std::nullopt;
  const auto size = number_of(lookup, "WORLD_SIZE");
  if (!size)
    throw UsageError("the environment has PMIX_RANK, but no variable with the number of ranks", {},
                     "export WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or use srun or mpirun");
  LauncherVariables found{.launcher = LauncherKind::Pmix,
                          .rank_name = "PMIX_RANK",
                          .size_name = "WORLD_SIZE",
                          .rank = Rank(*rank),
                          .size = *size};
  found.job = "PMIx";
  if (const auto id = value_of(lookup, "PMIX_NAMESPACE")) {
    found.job += " job " + *id;
    found.identity = found.job;
    found.port = port_of_text(*id);
  }
  return found;
}

}  // namespace penstock::comm
