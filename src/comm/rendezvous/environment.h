// Reads the environment variables of a rank: those of torchrun and `penstock run`, else those of the
// innermost cluster launcher. Parsing is strict, and depends only on its arguments.
#pragma once

#include <penstock/comm/launched_rank.h>
#include <penstock/comm/world.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace penstock::comm {

//! Returns the value of a variable, or null if it is unset.
using EnvironmentLookup = std::function<const char*(const char*)>;

//! Returns the id of the nearest ancestor process whose environment lacks `variable`: the launcher's daemon,
//! which all ranks of one machine share, even if scripts run between it and the ranks.
using AncestorLookup = std::function<std::int64_t(const char* variable)>;

//! In this order: a complete set of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; Open MPI; MPICH; a Slurm
//! step; PMIx; the shell of a Slurm allocation; no launcher. Throws a UsageError that names the variable if
//! one is missing or invalid, or contradicts another.
LaunchedRank read_environment(const EnvironmentLookup& lookup, const AncestorLookup& ancestor);

//! Parses an integer from 0 to `most`. Throws a UsageError that names `variable` if the text is not one.
std::int64_t parse_number(const std::string& variable, const std::string& text, std::int64_t most);

//! The timeout of an operation: what the program set, else PENSTOCK_TIMEOUT in seconds, else 5 minutes.
std::chrono::milliseconds operation_timeout(std::optional<std::chrono::milliseconds> from_program,
                                            const EnvironmentLookup& lookup);

//! Sets the options that the program left unset: from the environment, else to their defaults.
InitOptions with_environment(InitOptions options, const EnvironmentLookup& lookup);

//! Looks in the environment of this process.
const char* look_in_process(const char* name);

}  // namespace penstock::comm
