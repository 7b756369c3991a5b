// A thread that waits for operations nobody holds any more, so that their tensors are freed as soon as they
// complete. Gloo cannot be asked whether a send is done without blocking; this thread is the one that blocks.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock {

struct WorkState;

class Reaper {
 public:
  Reaper();
  ~Reaper();
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  //! Takes operations that their caller has claimed.
  void adopt(std::vector<std::shared_ptr<WorkState>> works);

  //! Waits until everything adopted so far has ended; bounded by the operations' own time-outs.
  void drain();

 private:
  // Shared with the thread: the last operation it lets go of may take the world, and so this object, with it.
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<WorkState>> works;
    bool busy = false;
    bool stop = false;
  };
  static void run(const std::shared_ptr<Queue>& queue);

  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace penstock
