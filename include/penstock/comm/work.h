// The handle of an asynchronous operation. A wait returns when the operation completes, or throws an error
// that names the peer: PeerFailed if another rank failed, TimeoutError if the operation did not complete
// within the timeout of the world.
#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace penstock::comm {

struct WorkState;

//! One asynchronous operation. Destroying the handle does not cancel it: its tensors stay alive until it is
//! done.
class Work {
 public:
  Work() = default;  //!< an operation that is already done
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work() { detach(); }

  //! Blocks until the operation is done. Throws if it failed.
  void wait();

  //! Returns whether the operation ended. Does not block, and does not throw if it failed (`wait` does).
  bool done() const;

  //! Runs `after` when the operation succeeds, on the thread that observes its completion. Must be called
  //! before the first wait.
  void then(std::function<void()> after);

  //! Releases the operation: its tensors are freed as soon as it completes.
  void detach() noexcept;
  //! Detaches several operations, but wakes the reaper thread only once.
  static void detach_all(std::vector<Work> works) noexcept;

 private:
  //! Resets the handle. Returns the state if the reaper still has to wait for the operation, else null.
  std::shared_ptr<WorkState> let_go() noexcept;

  std::shared_ptr<WorkState> state_;
};

}  // namespace penstock::comm
