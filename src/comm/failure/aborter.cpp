// The thread that aborts communicators.
#include "comm/failure/aborter.h"

#include "base/log_line.h"
#include "comm/failure/exception_text.h"

#include <thread>
#include <utility>

namespace penstock::comm {

void Aborter::add(const c10::intrusive_ptr<c10d::Backend>& backend) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->backends, [](const auto& known) { return known.expired(); });
  if (!state_->started) {
    state_->backends.emplace_back(backend);
    return;
  }
  ++state_->running;
  start(state_, {c10::weak_intrusive_ptr<c10d::Backend>(backend)});
}

void Aborter::abort_all() {
  const std::lock_guard lock(state_->mutex);
  if (std::exchange(state_->started, true) || state_->backends.empty()) return;
  ++state_->running;
  start(state_, std::exchange(state_->backends, {}));
}

void Aborter::start(const std::shared_ptr<State>& state,
                    std::vector<c10::weak_intrusive_ptr<c10d::Backend>> backends) {
  std::thread([state, backends = std::move(backends)]() mutable {
    for (const auto& known : backends) {
      const auto backend = known.lock();
      if (!backend) continue;
      try {
        backend->abort();
      } catch (const std::exception& e) {
        Log(LogLevel::Info) << "aborting a communicator: " << exception_text(e);
      }
    }
    // Also a weak pointer delays the destructor of its object. It would then run on this thread, possibly
    // when the process ends.
    backends.clear();
    const std::lock_guard lock(state->mutex);
    --state->running;
    state->changed.notify_all();
  }).detach();
}

void Aborter::wait(std::chrono::milliseconds limit) const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, limit, [this] { return state_->running == 0; });
}

}  // namespace penstock::comm
