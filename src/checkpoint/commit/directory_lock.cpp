// Uses an "open file description" lock on the file. Unlike a POSIX lock, it is not released when other code
// in this process opens and closes the file. NFS forwards both to the server.
#include "checkpoint/commit/directory_lock.h"

#include "base/io/storage_error.h"
#include "base/log_line.h"
#include "base/text.h"

#include <penstock/checkpoint/error.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <thread>

namespace penstock::checkpoint {
namespace {

constexpr const char* kLockName = "run.lock";
constexpr std::chrono::milliseconds kRetryPause{50};

std::string holder_text() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 40> time{};
  std::strftime(time.data(), time.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return str_cat("process ", ::getpid(), " on ", host.data(), ", started at ", time.data(), "\n");
}

//! Returns the description of the holder. The content is not trusted and is shown on one line.
std::string holder_in(int file) {
  std::array<char, 300> text{};
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  std::string holder(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  if (holder.empty()) return "another run";
  const std::string shown = quote(holder, 200);
  return shown.substr(1, shown.size() - 2);
}

//! Returns 0 or errno; EWOULDBLOCK if another process holds the lock.
int try_lock(int file) {
  int result = 0;
  while ((result = ::flock(file, LOCK_EX | LOCK_NB)) != 0 && errno == EINTR) {
  }
  return result == 0 ? 0 : errno;
}

int open_file(const std::string& path, int mode) {
  const int file = ::open(path.c_str(), mode | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file < 0) throw_storage_error("write to", path, errno);
  return file;
}

//! Like `try_lock`, but retries while another process holds the lock.
int wait_for_lock(int file) {
  const auto deadline = std::chrono::steady_clock::now() + DirectoryLock::kRetryTimeout;
  int error = try_lock(file);
  while (error == EWOULDBLOCK && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kRetryPause);
    error = try_lock(file);
  }
  return error;
}

StorageError busy_error(const std::string& directory, int file) {
  return {"the directory " + quote(directory, 200) + " is in use by another run: " + holder_in(file), EBUSY};
}

//! Also checks that the directory is writable.
void write_holder(const std::string& path) {
  const std::string text = holder_text();
  const int file = open_file(path, O_WRONLY | O_TRUNC);
  const ssize_t written = ::write(file, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  ::close(file);
  if (written != static_cast<ssize_t>(text.size())) throw_storage_error("write to", path, error);
}

}  // namespace

void DirectoryLock::release() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

//! Returns false if the directory, and the lock file with it, was removed.
bool DirectoryLock::is_held() const {
  struct stat held {};
  struct stat found {};
  return file_ >= 0 && ::fstat(file_, &held) == 0 &&
         ::stat((directory_ + "/" + kLockName).c_str(), &found) == 0 && held.st_ino == found.st_ino &&
         held.st_dev == found.st_dev;
}

void DirectoryLock::hold() {
  if (is_held()) return;
  release();
  const std::string path = directory_ + "/" + kLockName;
  file_ = open_file(path, O_RDONLY);
  int error = wait_for_lock(file_);
  if (error == EBADF) {  // NFS requires a file open for writing
    release();
    file_ = open_file(path, O_RDWR);
    error = wait_for_lock(file_);
  }
  try {
    if (error == EWOULDBLOCK) throw busy_error(directory_, file_);
    if (error != 0)
      Log(LogLevel::Warn) << quote(directory_, 200) << " cannot be locked (" << std::strerror(error)
                          << "): another run could write to it at the same time";
    write_holder(path);
  } catch (...) {
    release();
    throw;
  }
}

void DirectoryLock::check() const {
  const int file = ::open((directory_ + "/" + kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return;  // no run has locked it, or it is not writable, which other checks report
  const bool busy = wait_for_lock(file) == EWOULDBLOCK;
  const StorageError error = busy_error(directory_, file);
  ::close(file);  // also releases the lock
  if (busy) throw error;
}

}  // namespace penstock::checkpoint
