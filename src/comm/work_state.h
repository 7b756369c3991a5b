// One operation under way: the c10d work, what it is (for messages and the flight recorder), and how it ends.
#pragma once

#include "comm/domain.h"
#include "comm/handover.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace penstock {

struct WorkState {
  c10::intrusive_ptr<c10d::Work> work;
  c10::intrusive_ptr<c10::ivalue::Future> future;  //!< set where completion shows there
  std::shared_ptr<Domain> domain;
  std::shared_ptr<const void> group;  //!< keeps the backend alive while the operation runs
  Arrival arrival;                    //!< of a receive that shows in its memory
  std::function<void()> after;        //!< what turns the transport's result into the caller's (averages)

  FlightRecord record;
  std::string peer_text;  //!< `rank 3` or `the other ranks`
  std::optional<Rank> peer;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();

  enum class Status { Pending, Done, Failed };
  std::atomic<Status> status{Status::Pending};
  std::exception_ptr error;  //!< set before `status` becomes Failed

  //! Blocks until the operation has ended, and throws what went wrong.
  void wait();

  bool ended() const { return status.load(std::memory_order_acquire) != Status::Pending; }
  //! Exactly one thread waits for the transport: the one that claims it. The others wait for `status`.
  bool claim() { return !claimed_.exchange(true); }
  //! For the claimer: waits for the transport and settles `status`.
  void run_to_end() noexcept;

 private:
  void wait_for_transport();
  [[noreturn]] void raise(const std::string& transport_message);
  ErrorContext context() const;

  std::atomic<bool> claimed_{false};
};

}  // namespace penstock
