// OVERLAP_F_B: the forward pass of one microbatch and the backward pass of another, which are independent.
// With overlap_on_threads they run concurrently: the module's forward on a second thread, the backward pass
// on the rank thread. Only the rank thread accesses the mailbox and the state of the step, before and after
// the overlap.
#include "base/log_line.h"
#include "runtime/step/step_state.h"
#include "runtime/step/worker_thread.h"

#include <penstock/runtime/overlap.h>

#include <ATen/ThreadLocalState.h>

#include <utility>

namespace penstock::runtime {
namespace {

// The overlap that this rank thread is running; null if its parts run one after the other.
thread_local WorkerThread* second = nullptr;

}  // namespace

void Step::perform_overlap(const schedule::Action& forward, const schedule::Action& backward) {
  const auto& custom = setup_.options.execution.custom;
  if (second == nullptr || setup_.options.data_parallel || custom.contains(forward.kind()) ||
      custom.contains(backward.kind())) {
    perform(forward);
    return perform(backward);
  }
  facts_.check(forward);
  facts_.check(backward);
  ForwardPart one = begin_forward(forward.stage(), forward.microbatch());
  BackwardPart other = begin_backward(backward);
  second->run_concurrently([&] { run(one); }, [&] { run(other); });
  end(one);
  facts_.add(forward);
  end(other);
  facts_.add(backward);
}

ActionFunction overlap_on_threads() {
  const auto thread = std::make_shared<WorkerThread>();
  return [thread](const schedule::Action&, const ActionFunction::DefaultAction& run_default) {
    second = thread.get();
    try {
      run_default();
    } catch (...) {
      second = nullptr;
      throw;
    }
    second = nullptr;
  };
}

WorkerThread::WorkerThread() {
  thread_ = std::thread([this] { run(); });
}

WorkerThread::~WorkerThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WorkerThread::run_concurrently(const std::function<void()>& there, const std::function<void()>& here) {
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

void WorkerThread::start(const std::function<void()>& task) {
  {
    const std::lock_guard lock(mutex_);
    task_ = &task;
  }
  changed_.notify_all();
}

std::exception_ptr WorkerThread::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return task_ == nullptr; });
  return std::exchange(error_, nullptr);
}

void WorkerThread::run() {
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

}  // namespace penstock::runtime
