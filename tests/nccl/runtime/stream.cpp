// Streams as threads.
#include "stream.h"

#include <thread>
#include <utility>

namespace fake_cuda {

// Streams live as long as the process, so their threads are never joined.
Stream::Stream(int device) : device_(device) {
  std::thread([this] { run(); }).detach();
}

void Stream::add(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

bool Stream::is_idle() {
  const std::lock_guard lock(mutex_);
  return work_.empty() && !busy_;
}

void Stream::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_.empty() && !busy_; });
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !work_.empty(); });
    const std::function<void()> next = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    next();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace fake_cuda
