// The World handle.
#include "comm/world/world_state.h"

#include <penstock/base/log.h>
#include <penstock/comm/world.h>

#include <exception>
#include <utility>

namespace penstock::comm {

World::World(std::unique_ptr<WorldState> state) : state_(std::move(state)) {
  state_->exceptions_at_start = std::uncaught_exceptions();
}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;

World::~World() {
  if (!state_) return;
  try {
    if (std::uncaught_exceptions() > state_->exceptions_at_start) {
      fail("left its world while an exception was being thrown");
    } else {
      state_->domain->reaper.drain();
    }
    state_->domain->publish = nullptr;  // groups may outlive the world
    state_->leave();
  } catch (const std::exception& e) {
    Log(LogLevel::Warn) << "leaving the world: " << e.what();
  }
}

Rank World::rank() const {
  return state_->rank;
}
int World::size() const {
  return state_->size;
}
int World::local_rank() const {
  return state_->local_rank;
}
const Group& World::group() const {
  return *state_->group;
}
FlightRecorder& World::flight_recorder() const {
  return state_->domain->recorder;
}
void World::check() const {
  state_->domain->failure.throw_if_failed({.rank = state_->rank});
}

void World::fail(const std::string& cause) {
  if (state_->group) state_->group->fail(cause);  // no group during a rebuild
}

void World::rebuild() {
  state_->group.reset();
  ++state_->generation;
  state_->join();
}

}  // namespace penstock::comm
