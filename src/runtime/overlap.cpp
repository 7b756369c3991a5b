// OVERLAP_F_B: the forward of one microbatch and the backward of another, which need nothing of each other.
// At once where the user asked for it: the module's forward runs on the second thread, the backward on the
// rank's own; the mailbox and the step's state are touched by the rank's own thread alone, before and after.
#include "runtime/second_thread.h"
#include "runtime/step_state.h"

#include <penstock/base/log.h>
#include <penstock/runtime/overlap.h>

#include <ATen/ThreadLocalState.h>

#include <utility>

namespace penstock {
namespace {

// Of the overlap that this rank's thread is performing; null where its parts run in turn.
thread_local SecondThread* second = nullptr;

}  // namespace

void Step::perform_overlap(const Action& forward, const Action& backward) {
  const auto& custom = setup_.options.custom;
  if (second == nullptr || setup_.options.data_parallel || custom.contains(forward.kind()) ||
      custom.contains(backward.kind())) {
    perform(forward);
    return perform(backward);
  }
  facts_.check(forward);
  facts_.check(backward);
  ForwardPart one = begin_forward(forward.stage(), forward.microbatch());
  BackwardPart other = begin_backward(backward);
  second->beside([&] { run(one); }, [&] { run(other); });
  end(one);
  facts_.add(forward);
  end(other);
  facts_.add(backward);
}

ActionFunction overlap_on_threads() {
  const auto thread = std::make_shared<SecondThread>();
  return [thread](const Action&, const ActionFunction::Usual& usual) {
    second = thread.get();
    try {
      usual();
    } catch (...) {
      second = nullptr;
      throw;
    }
    second = nullptr;
  };
}

SecondThread::SecondThread() {
  thread_ = std::thread([this] { run(); });
}

SecondThread::~SecondThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SecondThread::beside(const std::function<void()>& there, const std::function<void()>& here) {
  const at::ThreadLocalState settings;
  const std::function<void()> task = [&there, &settings, rank = log_rank()] {
    set_log_rank(rank);
    const at::ThreadLocalStateGuard guard(settings);
    there();
  };
  start(task);
  try {
    here();
  } catch (...) {
    finish();
    throw;
  }
  if (const std::exception_ptr error = finish()) std::rethrow_exception(error);
}

void SecondThread::start(const std::function<void()>& task) {
  {
    const std::lock_guard lock(mutex_);
    task_ = &task;
  }
  changed_.notify_all();
}

std::exception_ptr SecondThread::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return task_ == nullptr; });
  return std::exchange(error_, nullptr);
}

void SecondThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return task_ != nullptr || stop_; });
    if (stop_) return;
    const std::function<void()>& task = *task_;
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    task_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace penstock
