// Aborts the communicators of a world when a rank fails. Only that ends the kernels of a communicator (NCCL),
// and with them a host that waits for its device. An abort can block, so it runs on a thread of its own.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::comm {

class Aborter {
 public:
  Aborter() : state_(std::make_shared<State>()) {}
  ~Aborter() { wait(std::chrono::seconds(30)); }
  Aborter(const Aborter&) = delete;
  Aborter& operator=(const Aborter&) = delete;

  //! Registers a backend, without owning it. After `abort_all`, aborts it immediately.
  void add(const c10::intrusive_ptr<c10d::Backend>& backend);
  //! Starts to abort all backends. Returns immediately.
  void abort_all();
  //! Waits until the aborts have ended, up to `limit`.
  void wait(std::chrono::milliseconds limit) const;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<c10::weak_intrusive_ptr<c10d::Backend>> backends;
    bool started = false;
    int running = 0;
  };
  static void start(const std::shared_ptr<State>& state,
                    std::vector<c10::weak_intrusive_ptr<c10d::Backend>> backends);

  std::shared_ptr<State> state_;  // shared with the threads
};

}  // namespace penstock::comm
