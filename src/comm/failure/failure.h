// The failure state of a world. Only the first report is kept; a report wakes every waiting thread.
#pragma once

#include <penstock/base/error.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::comm {

struct Failure {
  std::optional<Rank> rank;  //!< nullopt if the launcher or the store failed
  std::string cause;
  bool departure = false;  //!< the rank left the world without a failure while others waited for it
  bool late = false;       //!< an operation of this rank timed out; known to this process only

  //! A rank left the world without a failure, but `waiting` still waited for it in `op`.
  static Failure of_departure(Rank left, Rank waiting, const std::string& op);

  //! `<rank>:<cause>`, `<rank> left:<cause>` for a departure, or `-:<cause>` without a rank.
  std::string serialize() const;
  static Failure parse(const std::string& text);
};

//! How long to wait, after a connection broke, for the monitor to report which rank failed.
constexpr std::chrono::milliseconds kVerdictTime{3000};

//! The hint of a TimeoutError.
constexpr const char* kTimeoutHint =
    "raise the timeout (the option `timeout`, or PENSTOCK_TIMEOUT in seconds if it is not set), or find out "
    "why "
    "that rank is late";

class FailureState {
 public:
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  std::optional<Failure> failure() const;

  //! Records the failure if it is the first. Then, without the lock, aborts the works that threads wait for,
  //! wakes all waiters, and calls the function of `on_failure`.
  void report(Failure failure);
  //! Sets what the first report calls. Call it before ranks can fail.
  void on_failure(std::function<void()> call) { on_failure_ = std::move(call); }

  //! Waits up to `time` for a report and returns it, if any.
  std::optional<Failure> wait_for_report(std::chrono::milliseconds time) const;

  //! Waits until `ready` returns true, a failure is reported or the deadline passes; returns the last result
  //! of `ready`. Calls `ready` under the lock, again after each `notify`.
  bool wait_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& ready) const;
  void notify() const;

  [[noreturn]] void raise(const ErrorContext& context) const;
  void throw_if_failed(const ErrorContext& context) const {
    if (failed()) raise(context);
  }

  //! For an error of libtorch's store or transport: throws the failure that the monitor reports within
  //! kVerdictTime, else a CommError with the message of `error`.
  [[noreturn]] void raise_for(const c10::Error& error, const ErrorContext& context) const;

  //! During its lifetime, a report aborts `work`, to wake a thread that is blocked in work->wait(). The abort
  //! may come shortly after it, when the work is complete.
  class AbortOnFailure {
   public:
    AbortOnFailure(FailureState& state, c10::intrusive_ptr<c10d::Work> work);
    ~AbortOnFailure();
    AbortOnFailure(const AbortOnFailure&) = delete;
    AbortOnFailure& operator=(const AbortOnFailure&) = delete;

   private:
    FailureState& state_;
    c10::intrusive_ptr<c10d::Work> work_;
  };

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> failed_{false};
  std::optional<Failure> failure_;
  std::vector<c10::intrusive_ptr<c10d::Work>> waiting_;
  std::function<void()> on_failure_;
};

}  // namespace penstock::comm
