// Issues the operations of a group: each checks for known failures, is recorded, and goes to the backend of
// its tensor's device.
#pragma once

#include "comm/transport/host_staging.h"
#include "comm/world/group_impl.h"
#include "comm/world/work_impl.h"

#include <functional>
#include <memory>
#include <optional>

namespace penstock::comm {

//! What the messages and the flight recorder say about an operation.
struct Operation {
  const char* name;
  at::Tensor tensor;        //!< chooses the route and the size in the record; undefined for a barrier
  std::optional<int> peer;  //!< position in the group: the peer of a message, the root of a collective
  int tag = 0;
  bool is_collective = true;

  static Operation point_to_point(const char* name, const at::Tensor& tensor, int peer, int tag) {
    return {name, tensor, peer, tag, false};
  }
  static Operation collective(const char* name, const at::Tensor& tensor,
                              std::optional<int> root = std::nullopt) {
    return {name, tensor, root};
  }
};

//! What the function that calls the backend uses.
struct Issue {
  const Route& route;
  c10d::Backend& backend;
  HostStaging staging;  //!< for tensors that the transport cannot access
  ArrivalMark arrival;
  bool kept = false;  //!< the transport keeps the tensors until the operation ends
};

//! Issues one operation. `call` calls the backend and returns its work.
Work issue(const std::shared_ptr<Group::Impl>& group, const Operation& operation,
           const std::function<c10::intrusive_ptr<c10d::Work>(Issue&)>& call);

}  // namespace penstock::comm
