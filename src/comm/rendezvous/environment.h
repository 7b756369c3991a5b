// The environment variables that torchrun and `penstock run` set for a rank, with strict parsing.
#pragma once

#include "comm/rendezvous/job_secret.h"

#include <penstock/base/ids.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace penstock::comm {

struct RankEnvironment {
  Rank rank;
  int world_size = 1;
  int local_rank = 0;
  std::string master_address;
  std::uint16_t master_port = 0;
  bool launcher_hosts_store = false;  //!< otherwise rank 0 hosts it
  int attempt = 0;                    //!< number of restarts by the launcher
  JobSecret secret;                   //!< empty under other launchers (torchrun, mpirun)
};

//! Returns the value of a variable, or null if it is unset.
using EnvironmentLookup = std::function<const char*(const char*)>;

//! Returns nullopt if neither RANK nor WORLD_SIZE is set. Throws UsageError that names the variable if one is
//! missing or invalid.
std::optional<RankEnvironment> read_environment(const EnvironmentLookup& lookup);

//! Parses an integer from 0 to `most`. Throws UsageError that names `variable` if the text is not one.
std::int64_t parse_number(const std::string& variable, const std::string& text, std::int64_t most);

}  // namespace penstock::comm
