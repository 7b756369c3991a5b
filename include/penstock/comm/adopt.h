// Uses a c10d backend or process group of the caller as a Group. For programs that already have one, such as
// extensions of Python programs. Programs without one call init(), which adds failure detection.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/schedule/send_mode.h>

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace penstock::comm {

//! How an adopted group behaves.
struct AdoptOptions {
  std::string name = "adopted";  //!< in messages and the flight recorder
  //! How long an operation may wait before it throws TimeoutError. Unset: PENSTOCK_TIMEOUT (in seconds) if
  //! set, else 5 minutes. Choose it below the timeout of the backend: after its own timeout, Gloo closes
  //! connections, which is reported as a failure of the peer.
  std::optional<std::chrono::milliseconds> timeout{};
  //! When a send completes. By default: buffered for Gloo, MPI and UCC, ordered for NCCL, and blocking, the
  //! strictest mode, for a backend that Penstock does not know.
  std::optional<schedule::SendMode> send_mode{};
  //! Creates the backend of a new group of `members` (ranks of the adopted group), of which this rank is
  //! `members[me]`. Every member calls it. Without it, `Group::split` and `subgroup` throw UsageError.
  std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& name,
                                                  const std::vector<GroupRank>& members, GroupRank me)>
      connect{};
};

//! Returns a group over the backend, with its rank and size; world ranks are the ranks of the backend. The
//! group holds a reference to the backend. No monitor watches the ranks: a rank that dies is noticed when
//! its connections break, one that hangs after the timeout, and `Group::fail` informs only this process.
//! Do not use the group after a failure. docs/backends.md lists the limits.
Group adopt_group(const c10::intrusive_ptr<c10d::Backend>& backend, const AdoptOptions& options = {});

//! Same, for the backend that the process group uses for tensors of `device`. Throws UsageError if it has
//! none.
Group adopt_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const AdoptOptions& options = {},
                  c10::DeviceType device = c10::DeviceType::CPU);

}  // namespace penstock::comm
