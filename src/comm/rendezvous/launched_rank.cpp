// The environment of this process, and its description.
#include "comm/rendezvous/environment.h"
#include "comm/rendezvous/launcher_process.h"

#include <penstock/comm/launched_rank.h>

#include <unistd.h>

#include <cstdlib>

namespace penstock::comm {

std::string_view to_string(LauncherKind kind) {
  switch (kind) {
    case LauncherKind::None:
      return "none";
    case LauncherKind::Torchrun:
      return "torchrun";
    case LauncherKind::Slurm:
      return "Slurm";
    case LauncherKind::OpenMpi:
      return "Open MPI";
    case LauncherKind::Mpich:
      return "MPICH";
    case LauncherKind::Pmix:
      return "PMIx";
  }
  return "?";
}

LaunchedRank detect_rank() {
  return read_environment([](const char* name) { return std::getenv(name); },
                          [](const char* variable) { return ancestor_without(variable, getppid()); });
}

std::string to_string(const LaunchedRank& rank) {
  if (rank.launcher == LauncherKind::None) {
    if (rank.job.empty()) return "no launcher: a world of one rank";
    return rank.job + ": the shell of an allocation of " + std::to_string(rank.allocated_tasks) +
           (rank.allocated_tasks == 1 ? " task" : " tasks") + ", not a task of srun";
  }
  std::string text =
      rank.job + ": rank " + std::to_string(rank.rank.value) + " of " + std::to_string(rank.world_size);
  if (!rank.master_address.empty())
    text += ", store at " + rank.master_address + ":" + std::to_string(rank.master_port);
  return text;
}

}  // namespace penstock::comm
