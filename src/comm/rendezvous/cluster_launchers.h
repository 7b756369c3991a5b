// Reads the environment variables of cluster launchers, one function per launcher.
#pragma once

#include "comm/rendezvous/environment.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::comm {

//! What the variables of one launcher say about a rank.
struct LauncherVariables {
  LauncherKind launcher = LauncherKind::None;
  std::string rank_name, size_name;  //!< the variables of rank and size, for messages
  Rank rank;
  int size = 1;
  std::optional<int> local_rank{};
  std::string job{};                    //!< for people
  std::string identity{};               //!< the same on all ranks, different for every job; may be empty
  std::optional<std::string> host{};    //!< of rank 0; nullopt if the launcher does not say
  std::optional<std::uint16_t> port{};  //!< derived from the job; nullopt if nothing identifies it
};

//! Each returns nullopt if this process is not a rank of the launcher, and throws UsageError if the set of
//! variables is incomplete or invalid.
std::optional<LauncherVariables> read_open_mpi(const EnvironmentLookup& lookup);
std::optional<LauncherVariables> read_mpich(const EnvironmentLookup& lookup, const AncestorLookup& ancestor);
std::optional<LauncherVariables> read_slurm_step(const EnvironmentLookup& lookup);
std::optional<LauncherVariables> read_pmix(const EnvironmentLookup& lookup);

//! The shell of a Slurm allocation (sbatch, salloc) and the number of tasks that srun would start from it.
struct SlurmShell {
  std::string job;
  int tasks = 1;
};
//! Returns nullopt outside an allocation.
std::optional<SlurmShell> read_slurm_shell(const EnvironmentLookup& lookup);

//! Ports derived from a job are in [20000, 32000): below the range from which Linux takes ports for
//! connections (32768 to 60999 by default).
constexpr std::uint64_t kFirstJobPort = 20000, kJobPorts = 12000;
std::uint16_t port_of_number(std::uint64_t number);
//! From a hash of the text that is the same on every machine.
std::uint16_t port_of_text(std::string_view text);

//! Returns the value of a variable, or nullopt if it is unset or empty.
std::optional<std::string> value_of(const EnvironmentLookup& lookup, const char* name);
//! Parses a count or index; nullopt if the variable is unset or empty.
std::optional<int> number_of(const EnvironmentLookup& lookup, const char* name);

}  // namespace penstock::comm
