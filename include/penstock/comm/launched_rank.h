// How this process was started: as a rank of torchrun, `penstock run`, Slurm's srun, Open MPI's or MPICH's
// mpirun, or by none of them. docs/clusters.md lists the variables and their precedence.
#pragma once

#include <penstock/base/ids.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::comm {

//! Who set the environment variables of a rank. `Torchrun` stands for every launcher that sets RANK,
//! WORLD_SIZE, MASTER_ADDR and MASTER_PORT; `penstock run` is one of them.
enum class LauncherKind { None, Torchrun, Slurm, OpenMpi, Mpich, Pmix };

//! Returns the name of the launcher: `torchrun`, `Slurm`, `Open MPI`, `MPICH`, `PMIx` or `none`.
std::string_view to_string(LauncherKind kind);

//! What the environment says about this process. Without a launcher, it describes a world of one rank.
struct LaunchedRank {
  LauncherKind launcher = LauncherKind::None;
  Rank rank;
  int world_size = 1;
  int local_rank = 0;
  std::string master_address;  //!< host of the store; empty if the world has one rank
  std::uint16_t master_port = 0;
  bool launcher_hosts_store = false;  //!< otherwise rank 0 hosts it
  int attempt = 0;                    //!< number of restarts by the launcher
  std::string job;                    //!< for people, such as `Slurm job 42, step 0`; may be empty
  //! The same on every rank and different for every job of the launcher; empty if it provides no such value.
  std::string job_identity;
  //! In the shell of a Slurm allocation: the tasks that srun would start. `init()` refuses more than one,
  //! because this process is not one of them.
  int allocated_tasks = 1;
};

//! Reads the environment of this process, as `init()` does. Throws UsageError if variables are missing,
//! invalid or contradict each other.
LaunchedRank detect_rank();

//! One line: `Slurm job 42, step 0: rank 1 of 4, store at node01:20042`.
std::string to_string(const LaunchedRank& rank);

}  // namespace penstock::comm
