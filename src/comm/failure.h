// What a world knows about failed ranks. The first report wins; everyone who waits is woken.
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
#include <vector>

namespace penstock {

struct Failure {
  std::optional<Rank> rank;  //!< nothing when it is the launcher or the store that is gone
  std::string cause;

  std::string serialize() const;
  static Failure parse(const std::string& text);
};

//! What an exception says, without libtorch's stack trace.
std::string words_of(const std::exception& error);

//! How long a broken connection may wait for the monitor to say whose fault it is.
constexpr std::chrono::milliseconds kVerdictTime{3000};

class FailureState {
 public:
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  std::optional<Failure> failure() const;

  //! Records the first failure, aborts the works that are being waited for, and wakes all waiters.
  void report(Failure failure);

  //! Waits for a report at most this long.
  std::optional<Failure> wait_for_report(std::chrono::milliseconds time) const;

  //! Waits until `ready` (called under the lock; `notify` wakes it) or a failure or the deadline; whether it
  //! is ready.
  bool wait_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& ready) const;
  void notify() const;

  [[noreturn]] void raise(const ErrorContext& context) const;
  void throw_if_failed(const ErrorContext& context) const {
    if (failed()) raise(context);
  }

  //! libtorch's store or transport failed: raises what the monitor learns of it soon, else a CommError.
  [[noreturn]] void raise_for(const c10::Error& error, const ErrorContext& context) const;

  //! While it lives, a report aborts `work`, so that a thread blocked in work->wait() wakes.
  class AbortOnFailure {
   public:
    AbortOnFailure(FailureState& state, c10d::Work& work);
    ~AbortOnFailure();
    AbortOnFailure(const AbortOnFailure&) = delete;
    AbortOnFailure& operator=(const AbortOnFailure&) = delete;

   private:
    FailureState& state_;
    c10d::Work& work_;
  };

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> failed_{false};
  std::optional<Failure> failure_;
  std::vector<c10d::Work*> waiting_;
};

}  // namespace penstock
