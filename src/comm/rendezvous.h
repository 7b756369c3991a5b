// Waiting for each other through the store, with an error that names who did not come.
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

}  // namespace penstock
