// What a Group handle stands for: one c10d backend, its members, and the world's shared state.
#pragma once

#include "comm/domain.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace penstock {

struct GroupState {
  ~GroupState();

  std::string name;
  int rank = 0;
  std::vector<int> members;  //!< world ranks
  c10::intrusive_ptr<c10d::Backend> backend;
  std::shared_ptr<Transport> transport;
  std::shared_ptr<Domain> domain;
  std::atomic<std::uint64_t> collectives{0};
  std::atomic<int> splits{0};
};

//! Connects a group; called by every member.
std::shared_ptr<GroupState> make_group(std::string name, std::vector<int> members, int rank,
                                       std::shared_ptr<Transport> transport, std::shared_ptr<Domain> domain);

}  // namespace penstock
