// The state of a Group: its c10d backends, its members, and the shared state of the world.
#pragma once

#include "comm/world/generation.h"
#include "comm/world/group_use.h"

#include <penstock/comm/group.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::comm {

//! A backend and the transport that created it.
struct Route {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::shared_ptr<Transport> transport;

  //! Closes the backend.
  void close(WorldGeneration& generation);
};

struct Group::Impl {
  ~Impl();
  //! The route of a tensor: the control route for CPU tensors and barriers, if the group has one.
  const Route& route_of(const at::Tensor& tensor) const {
    return control && (!tensor.defined() || tensor.is_cpu()) ? *control : main;
  }

  std::string name;
  int rank = 0;
  std::vector<int> members;  //!< world ranks
  Route main;
  std::optional<Route> control;
  std::shared_ptr<WorldGeneration> generation;
  std::atomic<std::uint64_t> collectives{0};
  std::atomic<int> splits{0};
};

//! Connects a group. Every member must call it.
std::shared_ptr<Group::Impl> make_group(std::string name, std::vector<int> members, int rank,
                                        std::shared_ptr<Transport> transport,
                                        std::shared_ptr<WorldGeneration> generation,
                                        GroupUse use = GroupUse::Everything);

}  // namespace penstock::comm
