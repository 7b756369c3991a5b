// The lock on a checkpoint directory admits one run at a time, however the previous run ended.
#include "checkpoint/commit/directory_lock.h"
#include "support/error_message.h"
#include "support/program.h"

#include <penstock/checkpoint/writer.h>
#include <penstock/comm/thread_ranks.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

namespace penstock::checkpoint {
namespace {

using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

//! A process that holds the lock until it is killed.
class Holder {
 public:
  explicit Holder(const std::string& directory) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    child_ = ::fork();
    if (child_ == 0) {
      DirectoryLock lock(directory);
      lock.hold();
      [[maybe_unused]] const auto said = ::write(ends[1], "x", 1);
      for (;;) ::pause();
    }
    char word = 0;
    [[maybe_unused]] const auto heard = ::read(ends[0], &word, 1);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Holder() {
    kill();
    ::waitpid(child_, nullptr, 0);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  pid_t pid() const { return child_; }
  void kill() const { ::kill(child_, SIGKILL); }

 private:
  pid_t child_ = -1;
};

TEST(CheckpointDirectoryLock, RejectsSecondRunOnEveryRankAndNamesFirst) {
  const TempDir dir;
  const Holder holder(dir.path());
  comm::run_thread_ranks(2, [&](comm::World& world) {
    try {
      CheckpointWriter writer(dir.path(), world.group());
      ADD_FAILURE() << "two writers in one directory";
    } catch (const StorageError& error) {
      EXPECT_EQ(error.code(), EBUSY);
      EXPECT_THAT(
          error.what(),
          AllOf(HasSubstr("in use by another run"), HasSubstr("process " + std::to_string(holder.pid())),
                HasSubstr(" on " + host_name()), HasSubstr("started at 2"), HasSubstr("another directory")));
    }
  });
}

TEST(CheckpointDirectoryLock, IsReleasedWhenHolderIsKilled) {
  const TempDir dir;
  const Holder holder(dir.path());
  holder.kill();
  check_checkpoint_directory(dir.path());
}

TEST(CheckpointDirectoryLock, IsHeldBetweenSavesAndReleasedWithWriter) {
  const TempDir dir;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    {
      CheckpointWriter writer(dir.path(), world.group());
      writer.save(1, {full_piece("w", at::ones({3}))});
      writer.save(2, {full_piece("w", at::ones({3}))});
      writer.wait();
      const int file = ::open((dir / "run.lock").c_str(), O_RDONLY);
      EXPECT_NE(::flock(file, LOCK_EX | LOCK_NB), 0);
      ::close(file);
    }
    check_checkpoint_directory(dir.path());
  });
}

TEST(CheckpointDirectoryLock, IsTakenAgainAfterDirectoryIsRemoved) {
  const TempDir dir;
  DirectoryLock lock(dir / "a");
  std::filesystem::create_directory(dir / "a");
  lock.hold();
  std::filesystem::remove_all(dir / "a");
  std::filesystem::create_directory(dir / "a");
  lock.hold();
  EXPECT_TRUE(std::filesystem::exists(dir / "a/run.lock"));
  lock.release();
  DirectoryLock(dir / "a").hold();
}

TEST(CheckpointDirectoryLock, ReportsUnwritableDirectory) {
  const TempDir dir;
  std::ofstream(dir / "file") << "x";
  EXPECT_ERROR(check_checkpoint_directory(dir / "file"), StorageError, "cannot create the directory");
  EXPECT_ERROR(check_checkpoint_directory("/proc/no/such"), StorageError, "cannot create the directory");
}

}  // namespace
}  // namespace penstock::checkpoint
