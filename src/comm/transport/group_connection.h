// Connects the backend of a group. Connecting blocks until every member has joined and cannot be interrupted,
// so it runs on a thread that can be abandoned when a rank fails or is late.
#pragma once

#include "comm/world/generation.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace penstock::comm {

struct GroupConnection {
  WorldGeneration& generation;
  c10d::Store& store;
  std::string prefix;  //!< of the store keys of the world
  std::string name;    //!< of the group
  const std::vector<int>& members;
  std::chrono::milliseconds timeout;
  std::string hint;  //!< of the TimeoutError

  //! Returns the backend that `connect` returns on the other thread. If that takes long, tries to reach the
  //! members and names those that do not answer. `discard` is called with a backend that is ready too late.
  c10::intrusive_ptr<c10d::Backend> run(std::function<c10::intrusive_ptr<c10d::Backend>()> connect,
                                        std::function<void(c10d::Backend&)> discard = nullptr) const;
};

}  // namespace penstock::comm
