// The state of one operation: the c10d work, its description (for messages and the flight recorder), its
// result.
#pragma once

#include "comm/transport/arrival.h"
#include "comm/transport/streams.h"
#include "comm/world/group_impl.h"

#include <penstock/comm/work.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::comm {

struct Work::Impl {
  c10::intrusive_ptr<c10d::Work> work;
  c10::intrusive_ptr<c10::ivalue::Future> future;  //!< set if the transport completes it
  std::shared_ptr<WorldGeneration> generation;
  std::shared_ptr<const Group::Impl> group;  //!< keeps the backend alive while the operation runs
  ArrivalMark arrival;                       //!< for receives whose arrival is visible in memory
  std::function<void()> after;  //!< computes the final result from that of the transport (averages)
  bool kept = false;            //!< needs nobody to wait for it: the transport keeps its tensors
  bool on_stream = false;       //!< runs on a stream: `wait` makes the current stream wait, not the host
  std::optional<c10::Stream> stream;  //!< of a device tensor: the current stream when it was issued

  FlightRecord record;
  std::string peer_text;  //!< `rank 3` or `the other ranks`
  std::optional<Rank> peer;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();

  enum class Status { Pending, Done, Failed };
  std::atomic<Status> status{Status::Pending};
  std::exception_ptr error;  //!< set before `status` becomes Failed
  StreamPoint finished;      //!< the end of `after`, if another thread ran it; set before `status`

  //! Blocks until the operation has ended. Throws if it failed.
  void wait();

  bool ended() const { return status.load(std::memory_order_acquire) != Status::Pending; }
  //! Returns true for exactly one caller, which must wait for the transport. The others wait for `status`.
  bool claim() { return !claimed_.exchange(true); }
  bool claimed() const { return claimed_; }
  //! Called by the thread that claimed: waits for the transport and sets `status`.
  void run_to_end() noexcept;
  //! The same on the reaper: `after` uses the stream on which the operation was issued.
  void run_on_reaper() noexcept;

  //! The world ranks that the operation needs. Call it before the operation has ended.
  std::vector<int> others() const;

  //! Whether the operation has been running for longer than the timeout.
  bool is_overdue() const;
  //! Reports that the operation is overdue: a rank that left, if there is one, else the timeout, as the
  //! failure.
  void report_late(const std::vector<int>& others);
  //! Reports that the transport failed: the failure that the monitor reports soon, else the peer.
  void report_broken(const std::string& transport_message, const std::vector<int>& others);

 private:
  void wait_for_transport();
  [[noreturn]] void raise(const std::string& transport_message, const std::vector<int>& others);
  std::string late_text(std::chrono::steady_clock::duration waited) const;
  ErrorContext context() const;

  std::atomic<bool> claimed_{false};
};

}  // namespace penstock::comm
