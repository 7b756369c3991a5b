// The thread that polls operations on streams.
#include "comm/world/stream_watch.h"

#include "comm/failure/exception_text.h"
#include "comm/world/work_impl.h"

namespace penstock::comm {
namespace {

constexpr std::chrono::milliseconds kPoll{20};

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    return current_exception_text();
  }
}

}  // namespace

StreamWatch::~StreamWatch() {
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

void StreamWatch::add(const std::shared_ptr<Work::Impl>& work) {
  std::list<Watched> ended;  // destroyed without the lock
  {
    const std::lock_guard lock(queue_->mutex);
    for (auto it = queue_->pending.begin(); it != queue_->pending.end() && !queue_->checking;) {
      const auto next = std::next(it);
      if (!it->work->isCompleted() || it->work->exception()) break;  // the thread reports exceptions
      it->state->generation->recorder.finish(it->state->record.number, false);
      ended.splice(ended.end(), queue_->pending, it);
      it = next;
    }
    queue_->pending.push_back({work->work, work, work->group, work->others()});
    if (!thread_.joinable()) thread_ = std::thread([queue = queue_] { run(queue); });
  }
  queue_->changed.notify_all();
}

void StreamWatch::drain() {
  std::unique_lock lock(queue_->mutex);
  // While the thread checks, it may hold the last reference to a group whose operation has ended.
  queue_->changed.wait(lock, [this] { return queue_->pending.empty() && !queue_->checking; });
}

bool StreamWatch::check(const Watched& watched) {
  Work::Impl& state = *watched.state;
  WorldGeneration& generation = *state.generation;
  if (watched.work->isCompleted()) {
    const std::exception_ptr error = watched.work->exception();
    generation.recorder.finish(state.record.number, error != nullptr);
    if (error && !generation.failure.failed()) state.report_broken(message_of(error), watched.others);
    return true;
  }
  if (generation.failure.failed()) {  // its communicator is being aborted
    generation.recorder.finish(state.record.number, true);
    return true;
  }
  if (!state.is_overdue()) return false;
  state.report_late(watched.others);
  return false;
}

void StreamWatch::run(const std::shared_ptr<Queue>& queue) {
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return queue->stop || !queue->pending.empty(); });
    if (queue->stop) return;
    queue->checking = true;
    for (auto it = queue->pending.begin(); it != queue->pending.end();) {
      lock.unlock();
      const bool ended = check(*it);
      std::list<Watched> gone;
      lock.lock();
      const auto next = std::next(it);
      if (ended) gone.splice(gone.end(), queue->pending, it);
      it = next;
      if (gone.empty()) continue;
      lock.unlock();
      gone.clear();
      lock.lock();
    }
    queue->checking = false;
    queue->changed.notify_all();
    queue->changed.wait_for(lock, kPoll, [&] { return queue->stop; });
  }
}

}  // namespace penstock::comm
