// The environment of this process, and its description.
#include "base/text.h"
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
    return rank.job + ": the shell of an allocation of " + counted(rank.allocated_tasks, "task") +
           ", not a task of srun";
  }
  std::string text = str_cat(rank.job, ": rank ", rank.rank.value, " of ", rank.world_size);
  if (!rank.master_address.empty())
    text += str_cat(", store at ", rank.master_address, ":", rank.master_port);
  return text;
}

}  // namespace penstock::comm
