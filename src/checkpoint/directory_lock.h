// One run at a time writes into a directory of checkpoints: it holds a lock on DIR/run.lock. The kernel
// releases the lock when the process ends, however it ends, so a lock is never left behind; what the file
// says only names the holder.
#pragma once

#include <chrono>
#include <string>

namespace penstock {

class DirectoryLock {
 public:
  explicit DirectoryLock(std::string directory) : directory_(std::move(directory)) {}
  ~DirectoryLock() { release(); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  //! A run that was killed needs a moment to end, so a lock that is held is tried again for so long.
  static constexpr std::chrono::milliseconds patience{5000};

  //! Locks the directory, which must exist; does nothing if it is locked already. StorageError (EBUSY) with
  //! host, process and start of the holder if another run has it; another StorageError if nothing can be
  //! written there. Where the file system has no locks, it warns and goes on.
  void hold();
  void release();

 private:
  bool is_held() const;

  std::string directory_;
  int file_ = -1;
};

}  // namespace penstock
