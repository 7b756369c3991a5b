// The handle of an operation under way. A wait ends with the result, or with an error that names the peer:
// PeerFailed when another rank is known to have failed, TimeoutError when nothing happened for the world's
// time-out.
#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace penstock {

struct WorkState;

//! One asynchronous operation. Dropping the handle lets the operation go on: its tensors stay alive until it
//! is done.
class Work {
 public:
  Work() = default;  //!< an operation that is done
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work() { detach(); }

  //! Blocks until the operation is done.
  void wait();

  //! Whether it is done; does not block, and does not throw for an operation that failed (`wait` does).
  bool done() const;

  //! Runs `after` once the operation has succeeded, on the thread that sees its end; before the first wait
  //! only.
  void then(std::function<void()> after);

  //! Lets go of the operation: its tensors are freed as soon as it completes.
  void detach() noexcept;
  //! The same for many: wakes the thread that waits for them once.
  static void detach_all(std::vector<Work> works) noexcept;

 private:
  //! Gives up the state; what is left for someone else to wait for, if anything.
  std::shared_ptr<WorkState> let_go() noexcept;

  std::shared_ptr<WorkState> state_;
};

}  // namespace penstock
