// The reaper: a thread that waits for detached operations, to free their tensors as soon as they complete.
// Gloo cannot report without blocking whether a send is done, so this thread blocks instead of the caller.
#pragma once

#include <penstock/comm/work.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::comm {

class Reaper {
 public:
  Reaper();
  ~Reaper();
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  //! Takes over operations that the caller has claimed.
  void adopt(std::vector<std::shared_ptr<Work::Impl>> works);

  //! Waits until all adopted operations have ended. Bounded by the timeouts of the operations.
  void drain();

 private:
  // Shared with the thread: releasing the last operation may destroy the world and with it this object.
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<Work::Impl>> works;
    bool busy = false;
    bool stop = false;
  };
  static void run(const std::shared_ptr<Queue>& queue);

  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace penstock::comm
