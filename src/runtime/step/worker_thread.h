// A second thread of a rank: runs the forward pass of an OVERLAP_F_B while the rank thread runs the
// backward pass.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace penstock::runtime {

class WorkerThread {
 public:
  WorkerThread();
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  //! Runs `there` on the second thread, with the libtorch settings of this thread, and `here` on this one.
  //! Returns when both have finished. Rethrows the exception of `here`, otherwise that of `there`.
  void run_concurrently(const std::function<void()>& there, const std::function<void()>& here);

 private:
  void run();
  void start(const std::function<void()>& task);
  //! The exception of the task.
  std::exception_ptr finish();

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* task_ = nullptr;  // running or about to start
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace penstock::runtime
