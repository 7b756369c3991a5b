// The state of a World, with one subclass for processes and one for threads.
#pragma once

#include "comm/world/access.h"
#include "comm/world/generation.h"
#include "comm/world/group_impl.h"

#include <penstock/comm/world.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::comm {

struct World::Impl {
  virtual ~Impl() = default;

  //! Joins the other ranks in the current generation: sets `generation`, `transport` and `group`.
  virtual void join() = 0;
  //! Reports a failure to the other ranks, unless one is reported already; returns the first one.
  virtual Failure publish(const Failure& failure) = 0;
  //! The ranks that have left the world without a failure.
  virtual std::vector<Rank> departed() { return {}; }
  //! Leaves the world; called once, when the World is destroyed.
  virtual void leave() = 0;

  InitOptions options;  //!< with the environment applied and the index of the device
  Rank rank;
  int size = 1;
  int local_rank = 0;
  int generation_number = 0;
  int exceptions_at_start = 0;
  std::shared_ptr<WorldGeneration> generation;
  std::shared_ptr<Transport> transport;
  std::optional<Group> group;

 protected:
  void make_world_group() {
    std::vector<int> members;
    for (int member = 0; member < size; ++member) members.push_back(member);
    generation->publish = [this](const Failure& failure) { return publish(failure); };
    generation->departed = [this] { return departed(); };
    group = Access::group(make_group("world", std::move(members), rank.value, transport, generation));
  }
};

}  // namespace penstock::comm
