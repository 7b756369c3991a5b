// Rendezvous of ranks through the store, with errors that name missing and unreachable ranks.
#pragma once

#include "comm/world/generation.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace penstock::comm {

//! Announces this rank under `key` and waits until all `members` (world ranks) have done so. Throws
//! TimeoutError that names the missing ranks after `limit`. The number of messages to the store does not
//! depend on the number of members.
void await_members(c10d::Store& store, WorldGeneration& generation, const std::string& key,
                   const std::vector<int>& members, std::chrono::milliseconds limit);

//! Tries to connect to the monitor of each member. If some do not answer, reports the failure to the other
//! ranks and throws CommError that names the pairs of ranks that cannot communicate. `prefix` is the prefix
//! of the store keys of the world.
void check_members_answer(c10d::Store& store, WorldGeneration& generation, const std::string& prefix,
                          const std::vector<int>& members);

}  // namespace penstock::comm
