// The loading thread. It owns no state of the run: a pass depends on its number only.
#include "train/loop/pass_loader.h"

#include "base/log_line.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>

namespace penstock::train {
namespace {

// A source may return tensors on the device; its work then precedes that of the step.
std::optional<c10::Stream> stream_of(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

LoadedPass load_training_pass(const DataSource& data, const RunOptions& options, std::int64_t step,
                              int replica, std::int64_t part) {
  LoadedPass loaded{.pass = training_pass(data, options, step, replica, part),
                    .rows = data.training_rows(step, options.batch)};
  if (part > 0) return loaded;
  const bool is_batch = options.parallel.dp * options.accumulate == 1 && loaded.rows == options.batch;
  loaded.target = is_batch ? loaded.pass.batch.target : data.training_target(step, options.batch);
  return loaded;
}

PassLoader::PassLoader(Load load, std::int64_t count, std::int64_t ahead, c10::Device device)
    : load_(std::move(load)), count_(count), ahead_(static_cast<std::size_t>(ahead)) {
  if (ahead == 0 || count == 0) return;
  thread_ =
      std::thread([this, settings = at::ThreadLocalState(), rank = log_rank(), stream = stream_of(device)] {
        set_log_rank(rank);
        const at::ThreadLocalStateGuard guard(settings);
        const c10::OptionalStreamGuard current(stream);
        run();
      });
}

PassLoader::~PassLoader() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

LoadedPass PassLoader::take() {
  if (!thread_.joinable()) return load_(taken_++);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !loaded_.empty() || error_; });
  if (loaded_.empty()) std::rethrow_exception(error_);
  LoadedPass next = std::move(loaded_.front());
  loaded_.pop_front();
  ++taken_;
  lock.unlock();
  changed_.notify_all();
  return next;
}

void PassLoader::run() {
  for (std::int64_t number = 0; number < count_; ++number) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || loaded_.size() < ahead_; });
      if (stop_) return;
    }
    std::optional<LoadedPass> pass;
    std::exception_ptr error;
    try {
      pass = load_(number);
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      if (pass) loaded_.push_back(std::move(*pass));
      error_ = std::move(error);
      if (error_) stop_ = true;
    }
    changed_.notify_all();
  }
}

}  // namespace penstock::train
