// Waiting for each other through the store, with an error that names who did not come, and a look at who cannot be
// reached.
#pragma once

#include "comm/domain.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace penstock {

//! Announces this rank under `key` and waits until all `members` (ranks of the world) have done so.
void await_members(c10d::Store& store, Domain& domain, const std::string& key, const std::vector<int>& members,
                   std::chrono::milliseconds limit);

//! Tries a connection to each member's monitor. Where some do not answer: tells the other ranks, and throws a CommError
//! that names the pairs of ranks that cannot talk to each other. `prefix` is that of the world's keys in the store.
void check_members_answer(c10d::Store& store, Domain& domain, const std::string& prefix, const std::vector<int>& members);

}  // namespace penstock
