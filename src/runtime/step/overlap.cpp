// OVERLAP_F_B: the forward pass of one microbatch and the backward pass of another, which are independent.
// On a device, the module's forward runs on a second stream. On the CPU, with overlap_on_threads, it runs on
// a second thread. The backward pass runs on the rank thread and its stream. Only the rank thread accesses
// the mailbox and the state of the step, before and after the overlap.
#include "base/log_line.h"
#include "runtime/step/step_state.h"
#include "runtime/step/worker_thread.h"

#include <penstock/runtime/overlap.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/Tensor.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace penstock::runtime {
namespace {

// The overlap that this rank thread is running; null if its parts run one after the other.
thread_local WorkerThread* second = nullptr;

c10::Stream current_stream_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Lets `waiting` wait for the work that `done` has been given so far.
void wait_for_stream(const c10::Stream& waiting, const c10::Stream& done) {
  c10::Event event(done.device_type());
  event.record(done);
  event.block(waiting);
}

// Launches `there` on `side` and then `here` on the current stream, which finally waits for `side`. Memory of
// the current stream that `there` uses is free for others only after that wait.
template <class There, class Here>
void run_on_streams(const c10::Stream& side, const There& there, const Here& here) {
  const c10::Stream current = current_stream_of(side.device());
  wait_for_stream(side, current);
  try {
    {
      const c10::StreamGuard guard(side);
      there();
    }
    here();
  } catch (...) {
    try {
      wait_for_stream(current, side);  // the memory is freed now
    } catch (const c10::Error&) {
      // The device has failed, and the first error says more.
    }
    throw;
  }
  wait_for_stream(current, side);
}

void record_use(const at::Tensor& tensor, const c10::Stream& stream) {
  if (!tensor.defined()) return;
  const at::Tensor local = tensor::is_dtensor(tensor) ? tensor::local_of(tensor) : tensor;
  if (local.device() == stream.device()) local.record_stream(stream);
}

}  // namespace

bool Step::overlaps_on_streams(const schedule::Action& forward, const schedule::Action& backward) const {
  return setup_.overlap_stream &&
         setup_.stage(forward.stage())->device() == setup_.overlap_stream->device() &&
         setup_.stage(backward.stage())->device() == setup_.overlap_stream->device();
}

void Step::perform_overlap(const schedule::Action& forward, const schedule::Action& backward) {
  const auto& custom = setup_.options.execution.custom;
  const bool streams = overlaps_on_streams(forward, backward);
  const bool threads = second != nullptr && setup_.stage(forward.stage())->device().is_cpu();
  if ((!streams && !threads) || setup_.options.data_parallel || custom.contains(forward.kind()) ||
      custom.contains(backward.kind())) {
    perform(forward);
    return perform(backward);
  }
  facts_.check(forward);
  facts_.check(backward);
  ForwardPart one = begin_forward(forward.stage(), forward.microbatch());
  BackwardPart other = begin_backward(backward);
  if (streams) {
    run_on_streams(
        *setup_.overlap_stream, [&] { run(one); }, [&] { run(other); });
    // The results belong to the memory of the second stream, and are sent or used on this one.
    const c10::Stream current = current_stream_of(setup_.overlap_stream->device());
    for (const at::Tensor& tensor : value::tensors_of(one.result.output)) record_use(tensor, current);
    for (const auto& [name, skip] : one.result.skips) {
      for (const at::Tensor& tensor : value::tensors_of(skip)) record_use(tensor, current);
    }
  } else {
    second->run_concurrently([&] { run(one); }, [&] { run(other); });
  }
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
