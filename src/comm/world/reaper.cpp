// The thread that waits for detached operations.
#include "comm/world/reaper.h"

#include "comm/world/work_impl.h"

namespace penstock::comm {

Reaper::Reaper() : queue_(std::make_shared<Queue>()) {}

Reaper::~Reaper() {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stop = true;
  }
  queue_->changed.notify_all();
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Reaper::adopt(std::vector<std::shared_ptr<Work::Impl>> works) {
  {
    const std::lock_guard lock(queue_->mutex);
    for (auto& work : works) queue_->works.push_back(std::move(work));
    if (!thread_.joinable()) thread_ = std::thread([queue = queue_] { run(queue); });
  }
  queue_->changed.notify_all();
}

void Reaper::drain() {
  std::unique_lock lock(queue_->mutex);
  queue_->changed.wait(lock, [this] { return queue_->works.empty() && !queue_->busy; });
}

void Reaper::run(const std::shared_ptr<Queue>& queue) {
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return queue->stop || !queue->works.empty(); });
    if (queue->works.empty()) return;
    std::shared_ptr<Work::Impl> work = std::move(queue->works.front());
    queue->works.pop_front();
    queue->busy = true;
    lock.unlock();
    work->run_on_reaper();
    work.reset();
    lock.lock();
    queue->busy = false;
    queue->changed.notify_all();
  }
}

}  // namespace penstock::comm
