// The environment that torchrun and `penstock run` give a rank, read strictly.
#pragma once

#include "comm/job_secret.h"

#include <penstock/base/ids.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace penstock {

struct RankEnvironment {
  Rank rank;
  int world_size = 1;
  int local_rank = 0;
  std::string master_address;
  std::uint16_t master_port = 0;
  bool launcher_hosts_store = false;  //!< else rank 0 does
  int attempt = 0;                    //!< how often the launcher has restarted the job
  JobSecret secret;                   //!< none where the launcher gives none (torchrun, mpirun)
};

//! Looks a variable up; null where it is unset.
using EnvironmentLookup = std::function<const char*(const char*)>;

//! Nothing when neither RANK nor WORLD_SIZE is set; UsageError, naming the variable, for anything incomplete or wrong.
std::optional<RankEnvironment> read_environment(const EnvironmentLookup& lookup);

//! A whole, non-negative number; UsageError naming `variable` otherwise.
std::int64_t parse_number(const std::string& variable, const std::string& text, std::int64_t most);

}  // namespace penstock
