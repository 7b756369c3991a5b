// The state that all groups of one world generation share (`rebuild` starts a new generation), and the
// interface that creates their backends.
#pragma once

#include "comm/failure/aborter.h"
#include "comm/failure/failure.h"
#include "comm/failure/flight_recorder.h"
#include "comm/world/reaper.h"
#include "comm/world/stream_watch.h"

#include <penstock/schedule/send_mode.h>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::comm {

struct WorldGeneration : std::enable_shared_from_this<WorldGeneration> {
  WorldGeneration(Rank this_rank, std::chrono::milliseconds wait_limit)
      : rank(this_rank), timeout(wait_limit), recorder(this_rank) {
    failure.on_failure([this] { aborter.abort_all(); });
  }

  const Rank rank;
  const std::chrono::milliseconds timeout;
  FailureState failure;
  //! Reports a failure to the other ranks, unless one is reported already, and returns the first one; set
  //! during the lifetime of the world.
  std::function<Failure(const Failure&)> publish;
  //! Returns the ranks that have left the world without a failure; set during the lifetime of the world.
  std::function<std::vector<Rank>()> departed;
  FlightRecorder recorder;
  Aborter aborter;
  Reaper reaper;
  StreamWatch stream_watch;

  //! For an operation that broke or timed out without a reported failure: if one of `members` has left the
  //! world, reports that as the failure, to all ranks.
  void report_departed(const std::vector<int>& members, const std::string& op);
};

//! Creates the backends of groups.
class Transport {
 public:
  virtual ~Transport() = default;
  //! Connects the world ranks `members` as group `name`; this rank is members[me]. All members must call it.
  virtual c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration& generation, const std::string& name,
                                                    const std::vector<int>& members, int me) = 0;
  //! The same for a group that has no collectives of device tensors.
  virtual c10::intrusive_ptr<c10d::Backend> connect_transfers(WorldGeneration& generation,
                                                              const std::string& name,
                                                              const std::vector<int>& members, int me) {
    return connect(generation, name, members, me);
  }
  //! When a send completes (the table of modes is in penstock/schedule/send_mode.h).
  virtual schedule::SendMode send_mode() const = 0;
  //! Whether collectives complete a future (Gloo), so that a wait needs no blocking call.
  virtual bool collectives_have_futures() const = 0;
  //! The future of a collective, or null if it has none.
  virtual c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work) const {
    return collectives_have_futures() ? work.getFuture() : nullptr;
  }
  //! Whether a group of these world ranks reduces and scatters in one operation.
  virtual bool scatters_reductions(const std::vector<int>& /*members*/) const {
    return !collectives_have_futures();
  }
  //! Whether a send needs nobody to wait for it: the transport keeps its tensor until it completes.
  virtual bool keeps_send(const c10d::Work& /*work*/) const { return false; }
  //! Waits until the kept sends are complete, or until a rank fails.
  virtual void drain(WorldGeneration& /*generation*/) {}
  //! Whether a failed group can be destroyed without waiting for its peers.
  virtual bool can_close_after_failure() const { return false; }
  //! Whether the transport copies data to and from the tensors on its own thread (see arrival.h).
  virtual bool has_own_thread() const { return false; }
  //! Whether the transport accesses host memory only (Gloo), so that device tensors are copied to the host.
  virtual bool host_memory_only() const { return false; }
  //! Whether operations run on a stream of the device (NCCL): a wait is a wait of the current stream, and a
  //! failure aborts the backend.
  virtual bool runs_on_stream() const { return false; }
  //! Whether collectives compute averages themselves. Otherwise they sum, and the group divides.
  virtual bool averages() const { return false; }
  //! The transport of CPU tensors and barriers, if this one takes only device tensors; else null.
  virtual std::shared_ptr<Transport> control() const { return nullptr; }
};

}  // namespace penstock::comm
