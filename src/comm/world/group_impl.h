// The state of a Group: one c10d backend, its members, and the shared state of the world.
#pragma once

#include "comm/world/generation.h"

#include <penstock/comm/group.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace penstock::comm {

struct Group::Impl {
  ~Impl();

  std::string name;
  int rank = 0;
  std::vector<int> members;  //!< world ranks
  c10::intrusive_ptr<c10d::Backend> backend;
  std::shared_ptr<Transport> transport;
  std::shared_ptr<WorldGeneration> generation;
  std::atomic<std::uint64_t> collectives{0};
  std::atomic<int> splits{0};
};

//! Connects a group. Every member must call it.
std::shared_ptr<Group::Impl> make_group(std::string name, std::vector<int> members, int rank,
                                        std::shared_ptr<Transport> transport,
                                        std::shared_ptr<WorldGeneration> generation);

}  // namespace penstock::comm
