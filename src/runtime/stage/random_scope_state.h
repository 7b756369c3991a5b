// The state of a random scope, from which the same numbers can be drawn again.
#pragma once

#include <penstock/runtime/random.h>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <map>
#include <optional>
#include <utility>

namespace penstock::runtime {

struct RandomScopeState {
  RandomKey key;
  //! Copies of the generators, by device; those that were not used yet are not listed.
  std::map<std::pair<at::DeviceType, at::DeviceIndex>, at::Generator> generators;
};

//! The state of the innermost scope of this thread; nullopt if there is none.
std::optional<RandomScopeState> random_scope_state();
//! Sets the state of the innermost scope of this thread, which must exist.
void set_random_scope_state(const RandomScopeState& state);

}  // namespace penstock::runtime
