// OVERLAP_F_B: the forward pass of one microbatch and the backward pass of another, which are independent.
// On a device, they run on two streams. On the CPU, with overlap_on_threads, the module's forward runs on a
// second thread. Only the rank thread accesses the mailbox and the state of the step, before and after the
// overlap.
//
// Autograd runs a backward pass on the stream of its forward pass, and starts it from the stream of the rank.
// The forward pass of an overlap therefore needs a stream that is neither: one of two side streams, the one
// that the forward pass of the other microbatch did not use. Losses, transfers and the reduction of gradients
// stay on the stream of the rank.
#include "base/log_line.h"
#include "runtime/step/side_stream.h"
#include "runtime/step/step_state.h"
#include "runtime/step/worker_thread.h"

#include <penstock/runtime/overlap.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/Tensor.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>

#include <utility>

namespace penstock::runtime {
namespace {

// The overlap that this rank thread is running; null if its parts run one after the other.
thread_local WorkerThread* second = nullptr;

// Launches `there` on `side` and then `here` on the current stream, which finally waits for `side`. Memory of
// the current stream that `there` uses is free for others only after that wait.
template <class There, class Here>
void run_on_streams(const c10::Stream& side, const There& there, const Here& here) {
  wait_for_stream(side, current_stream_of(side.device()));
  const StreamJoin join(side);
  {
    const c10::StreamGuard guard(side);
    there();
  }
  here();
}

void record_use(const at::Tensor& tensor, const c10::Stream& stream) {
  if (!tensor.defined()) return;
  const at::Tensor local = tensor::is_dtensor(tensor) ? tensor::local_of(tensor) : tensor;
  if (local.device() == stream.device()) local.record_stream(stream);
}

// The results belong to the memory of a side stream, and are sent or used on another one.
void record_uses(const StageResult& result, const c10::Stream& stream) {
  for (const at::Tensor& tensor : value::tensors_of(result.output)) record_use(tensor, stream);
  for (const auto& [name, skip] : result.skips)
    for (const at::Tensor& tensor : value::tensors_of(skip)) record_use(tensor, stream);
}

}  // namespace

std::optional<c10::Stream> Step::overlap_stream(const schedule::Action& forward,
                                                const schedule::Action& backward) {
  if (!setup_.overlap_streams) return std::nullopt;
  const auto& [first, other] = *setup_.overlap_streams;
  const auto is_there = [&, device = first.device()](const schedule::Action& part) {
    return setup_.stage(part.stage())->device() == device;
  };
  if (!is_there(forward) || !is_there(backward)) return std::nullopt;
  return record_of(backward.stage(), backward.microbatch()).stream == first ? other : first;
}

void Step::perform_overlap(const schedule::Action& forward, const schedule::Action& backward) {
  const auto& custom = setup_.options.execution.custom;
  DataParallel* const data_parallel = setup_.options.data_parallel.get();
  const bool replaced = custom.contains(forward.kind()) || custom.contains(backward.kind());
  const std::optional<c10::Stream> side = replaced ? std::nullopt : overlap_stream(forward, backward);
  const bool threads = !replaced && data_parallel == nullptr && second != nullptr &&
                       setup_.stage(forward.stage())->device().is_cpu();
  if (!side && !threads) {
    perform(forward);
    return perform(backward);
  }
  for (const schedule::Action& part : {forward, backward}) {
    announce(part);
    facts_.check(part);
    if (data_parallel != nullptr) data_parallel->before_compute(part.stage());
  }
  ForwardPart one = begin_forward(forward.stage(), forward.microbatch());
  BackwardPart two = begin_backward(backward);
  if (side) {
    run_on_streams(
        *side, [&] { run(one); }, [&] { run(two); });
    record_uses(one.result, current_stream_of(side->device()));
  } else {
    second->run_concurrently([&] { run(one); }, [&] { run(two); });
  }
  end(one);
  record_of(forward.stage(), forward.microbatch()).stream = side;
  facts_.add(forward);
  end(two);
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
