// The World handle.
#include "base/log_line.h"
#include "comm/world/world_impl.h"

#include <penstock/base/error.h>
#include <penstock/comm/world.h>

#include <exception>
#include <utility>

namespace penstock::comm {

World Access::world(std::unique_ptr<World::Impl> impl) {
  return World(std::move(impl));
}

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->exceptions_at_start = std::uncaught_exceptions();
}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;

World::~World() {
  if (!impl_) return;
  try {
    if (std::uncaught_exceptions() > impl_->exceptions_at_start) {
      fail("left its world while an exception was being thrown");
    } else {
      impl_->generation->reaper.drain();
      if (impl_->transport) impl_->transport->drain(*impl_->generation);
    }
    impl_->generation->stream_watch.drain();
    impl_->generation->publish = nullptr;  // groups may outlive the world
    impl_->generation->departed = nullptr;
    impl_->leave();
  } catch (const std::exception& e) {
    Log(LogLevel::Warn) << "leaving the world: " << e.what();
  }
}

Rank World::rank() const {
  return impl_->rank;
}
int World::size() const {
  return impl_->size;
}
int World::local_rank() const {
  return impl_->local_rank;
}
c10::Device World::device() const {
  return impl_->options.device;
}
const Group& World::group() const {
  if (!impl_->group)
    throw UsageError("the world has no group, because rebuild() failed", {.rank = impl_->rank},
                     "call rebuild() again on every rank, or end the process");
  return *impl_->group;
}
std::vector<FlightRecord> World::flight_records() const {
  return impl_->generation->recorder.records();
}
void World::check() const {
  impl_->generation->failure.throw_if_failed({.rank = impl_->rank});
}

void World::fail(const std::string& cause) {
  if (impl_->group) impl_->group->fail(cause);  // no group during a rebuild
}

void World::rebuild() {
  if (impl_->generation->failure.failed()) impl_->generation->stream_watch.drain();
  impl_->group.reset();
  ++impl_->generation_number;
  impl_->join();
}

}  // namespace penstock::comm
