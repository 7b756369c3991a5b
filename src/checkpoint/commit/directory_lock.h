// Ensures that only one run at a time writes to a checkpoint directory: it holds a lock on DIR/run.lock. The
// kernel releases the lock when the process ends for any reason, so there are no stale locks. The content of
// the file only names the holder.
#pragma once

#include <chrono>
#include <string>

namespace penstock::checkpoint {

class DirectoryLock {
 public:
  explicit DirectoryLock(std::string directory) : directory_(std::move(directory)) {}
  ~DirectoryLock() { release(); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  //! How long to retry if the lock is held: a killed run needs a moment to exit.
  static constexpr std::chrono::milliseconds kRetryTimeout{5000};

  //! Locks the directory, which must exist; does nothing if this object already holds the lock. Throws
  //! StorageError: EBUSY, with host, process and start time of the holder, if another run holds the lock;
  //! another code if the directory is not writable. Only warns if the file system does not support locks.
  void hold();
  void release();

  //! Throws the StorageError of `hold` if another run holds the lock. Writes nothing; the directory need not
  //! exist.
  void check() const;

 private:
  bool is_held() const;

  std::string directory_;
  int file_ = -1;
};

}  // namespace penstock::checkpoint
