// The process that cleans up after a killed launcher, if it runs out of memory.
#include "comm/launch/process_tree.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>

namespace penstock::comm {
namespace {

//! Processes that are forked during its lifetime cannot obtain more memory.
class NoMoreMemory {
 public:
  NoMoreMemory() {
    getrlimit(RLIMIT_AS, &before_);
    const rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_AS, &none);
  }
  ~NoMoreMemory() { setrlimit(RLIMIT_AS, &before_); }
  NoMoreMemory(const NoMoreMemory&) = delete;
  NoMoreMemory& operator=(const NoMoreMemory&) = delete;

 private:
  rlimit before_{};
};

// The guardian is a copy of the launcher: an exception that left it would continue in the launcher's code.
TEST(CommGuardian, ExceptionEndsOnlyItsOwnProcess) {
  constexpr int handled = 1, escaped = 2;
  signal(SIGPIPE, SIG_IGN);  // the guardian ends before it has read everything
  const std::string large(std::size_t{64} << 20U, 'x');
  const JobMark mark("the mark of no process");
  const pid_t launcher = getpid();
  std::optional<Guardian> guardian;
  try {
    const NoMoreMemory limit;
    guardian.emplace(mark);
  } catch (...) {
    if (getpid() != launcher) _exit(escaped);
    throw;
  }
  guardian->add_directory(large);  // the guardian has no memory for it
  int status = 0;
  ASSERT_GT(waitpid(-1, &status, 0), 0);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), handled);
}

}  // namespace
}  // namespace penstock::comm
