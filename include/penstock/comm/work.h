// The handle of an asynchronous operation. A wait returns when the operation completes, or throws:
// PeerFailed, which names the rank, if another rank failed; TimeoutError if the operation did not complete
// within the timeout of the world; CommError if the transport fails for another reason. Over NCCL, a wait
// does not block the host: it makes the current stream wait, and these errors are thrown by the next
// operation.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::comm {

//! One asynchronous operation. Destroying the handle does not cancel it: its tensors stay alive until it is
//! done.
class Work {
 public:
  struct Impl;

  Work() = default;  //!< an operation that is already done
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work() { detach(); }

  //! Blocks until the operation is done, or over NCCL, until it is done on the current stream. Throws if it
  //! failed. The handle is then empty: a second call returns at once, even if the first one threw.
  void wait();

  //! Returns whether the operation ended. Does not block, and does not throw if it failed (`wait` does).
  bool done();

  //! Runs `after` when the operation succeeds, on the thread that calls `wait`, or on the reaper after `done`
  //! or `detach` (on the calling thread if the operation is complete by then, and over NCCL). On the reaper,
  //! the current stream is that on which the operation was issued. Several functions run in call order. For
  //! an empty handle (after `wait`, or default-constructed) runs `after` immediately. Throws UsageError after
  //! `done`.
  void then(std::function<void()> after);

  //! Releases the operation: its tensors are freed as soon as it completes.
  void detach() noexcept;
  //! Detaches several operations, but wakes the reaper thread only once.
  static void detach_all(std::vector<Work> works) noexcept;

 private:
  friend struct Access;
  explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  //! Resets the handle. Returns the state if the reaper still has to wait for the operation, else null.
  std::shared_ptr<Impl> release() noexcept;

  std::shared_ptr<Impl> impl_;
};

}  // namespace penstock::comm
