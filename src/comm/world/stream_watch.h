// Watches operations that run on a stream of a device (NCCL). Their `wait` does not block the host, so a
// thread polls them: it records when they end, and reports those that break or take longer than the timeout.
#pragma once

#include <penstock/comm/work.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::comm {

class StreamWatch {
 public:
  StreamWatch() : queue_(std::make_shared<Queue>()) {}
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  //! Watches an operation that was issued. Forgets operations that have ended, and with them their tensors.
  void add(const std::shared_ptr<Work::Impl>& work);
  //! Waits until all operations have ended and their groups are released. Bounded by the timeout of the
  //! world; after a failure, operations end at once.
  void drain();

 private:
  struct Watched {
    c10::intrusive_ptr<c10d::Work> work;
    std::shared_ptr<Work::Impl> state;
    std::shared_ptr<const void> group;  //!< keeps the backend open
    std::vector<int> others;            //!< the world ranks that the operation needs
  };
  // Shared with the thread: releasing the last operation may destroy the world and with it this object.
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::list<Watched> pending;
    bool checking = false;
    bool stop = false;
  };
  static void run(const std::shared_ptr<Queue>& queue);
  //! Returns whether the operation has ended, also by a failure.
  static bool check(const Watched& watched);

  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace penstock::comm
