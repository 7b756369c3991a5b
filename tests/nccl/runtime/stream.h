// Streams of the fake CUDA runtime: a queue and a thread each. The fake NCCL runs its kernels on them.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace fake_cuda {

class Stream {
 public:
  explicit Stream(int device);

  //! Runs `work` after everything that was added before.
  void add(std::function<void()> work);
  bool is_idle();
  //! Waits until everything that was added has run.
  void drain();
  int device() const { return device_; }

 private:
  [[noreturn]] void run();

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false;
};

//! The stream of a handle; the default stream of the current device for a null handle.
__attribute__((visibility("default"))) Stream& stream_of(cudaStream_t handle);

}  // namespace fake_cuda
