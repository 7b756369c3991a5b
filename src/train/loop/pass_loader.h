// Loads the rows of passes ahead of their use, on a thread of its own.
#pragma once

#include "train/loop/counted_rows.h"

#include <c10/core/Device.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace penstock::train {

//! The rows of a pass, with what the weight of its loss depends on.
struct LoadedPass {
  PassBatch pass;
  c10::IValue target{};   //!< of the whole batch of the step; set for its first part
  std::int64_t rows = 0;  //!< of the whole batch
};

//! Loads part `part` of the batch of a step for a replica.
LoadedPass load_training_pass(const DataSource& data, const RunOptions& options, std::int64_t step,
                              int replica, std::int64_t part);

//! Loads passes in order. The thread has the settings of libtorch, the current stream and the rank in log
//! lines of the thread that created the loader.
class PassLoader {
 public:
  using Load = std::function<LoadedPass(std::int64_t number)>;

  //! Calls `load` for the numbers from 0 to `count` - 1 on its thread, with at most `ahead` passes that wait
  //! to be taken. With `ahead` 0 there is no thread: `take` calls it. The ranks run on `device`.
  PassLoader(Load load, std::int64_t count, std::int64_t ahead, c10::Device device);
  //! Waits for the call of `load` in progress, and makes no other.
  ~PassLoader();
  PassLoader(const PassLoader&) = delete;
  PassLoader& operator=(const PassLoader&) = delete;

  //! Returns the next pass. Throws the error of its `load`; no later pass is loaded then. Requires that there
  //! is one.
  LoadedPass take();

 private:
  void run();

  Load load_;
  std::int64_t count_;
  std::size_t ahead_;
  std::int64_t taken_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex.
  std::deque<LoadedPass> loaded_;
  std::exception_ptr error_;  // of the pass after those in `loaded_`
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace penstock::train
