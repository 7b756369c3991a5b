// A second thread of a rank, for the forward of an OVERLAP_F_B while its backward runs on the rank's own.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace penstock {

class SecondThread {
 public:
  SecondThread();
  ~SecondThread();
  SecondThread(const SecondThread&) = delete;
  SecondThread& operator=(const SecondThread&) = delete;

  //! Runs `there` on the second thread, with this thread's settings of libtorch, and `here` on this one;
  //! returns when both have ended. Throws what `here` threw, else what `there` threw.
  void beside(const std::function<void()>& there, const std::function<void()>& here);

 private:
  void run();
  void start(const std::function<void()>& task);
  //! What the task threw.
  std::exception_ptr finish();

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* task_ = nullptr;  // under way, or to be begun
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace penstock
