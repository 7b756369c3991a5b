// A crash at any operation or byte keeps the last complete checkpoint usable. Tested with a simulated disk
// that loses unflushed data, and with killed processes.
#include "checkpoint/commit/access.h"
#include "faulty_files.h"
#include "support/counted_tensors.h"
#include "support/process_ranks.h"
#include "support/program.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/thread_ranks.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace penstock::checkpoint {
namespace {

using namespace test;
using ::testing::HasSubstr;

//! The model at a step: every element encodes the step.
std::vector<Piece> crash_model(std::int64_t step, std::int64_t elements = 12) {
  return {full_piece("weight", at::full({elements}, static_cast<double>(step))),
          full_piece("bias", at::full({3}, step, at::kLong))};
}

bool holds_step(const Checkpoint& checkpoint) {
  const at::Tensor weight = checkpoint.read("weight"), bias = checkpoint.read("bias");
  return at::equal(weight, at::full_like(weight, static_cast<double>(checkpoint.step()))) &&
         at::equal(bias, at::full_like(bias, checkpoint.step()));
}

//! Saves a step and returns whether the save succeeded.
bool save_with(FileSystem& files, const std::string& directory, std::int64_t step, std::optional<int> keep) {
  bool done = true;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    try {
      CheckpointWriter writer =
          Access::writer(directory, world.group(), {.keep = keep, .asynchronous = false}, files);
      writer.save(step, crash_model(step));
    } catch (const StorageError&) {
      done = false;
    }
  });
  return done;
}

//! Saves `step` into a directory that contains `before`, crashing after every `stride`-th unit of cost.
void crash_everywhere(const std::vector<std::int64_t>& before, std::int64_t step, int keep,
                      std::int64_t stride) {
  Random random(20261116);
  const TempDir start, other;
  CrashingFiles calm, counting;
  for (const std::int64_t old : before) ASSERT_TRUE(save_with(calm, start.path(), old, std::nullopt));
  // Run once without a crash to find the total cost, including pruning (whose errors are only logged).
  fs::copy(start.path(), other.path(), fs::copy_options::recursive);
  ASSERT_TRUE(save_with(counting, other.path(), step, keep));
  const std::int64_t cost = counting.spent();
  for (std::int64_t next = 0;; next += stride) {
    const TempDir dir;
    fs::copy(start.path(), dir.path(), fs::copy_options::recursive);
    if (next >= cost + stride) break;
    const std::int64_t budget =
        std::min(next, cost);  // the last save does not crash but may lose unflushed data
    SCOPED_TRACE("crash after " + std::to_string(budget) + " of " + std::to_string(cost));
    CrashingFiles files(budget);
    const bool done = save_with(files, dir.path(), step, keep);
    EXPECT_EQ(files.crashed(), budget < cost);
    files.lose(random);
    const ResumePoint found = find_resume_point(dir.path());
    ASSERT_TRUE(found.checkpoint.step() == step || found.checkpoint.step() == before.back())
        << found.checkpoint.step();
    ASSERT_TRUE(holds_step(found.checkpoint));
    ASSERT_TRUE(!done || found.checkpoint.step() == step);
    // The next save succeeds and removes everything the crash left behind.
    ASSERT_TRUE(save_with(calm, dir.path(), step + 1, 1));
    ASSERT_EQ(list_directory(dir.path()), (std::vector<std::string>{"run.lock", checkpoint_name(step + 1)}));
  }
}

TEST(CheckpointCrash, AtAnyOperationOrByteKeepsLastCheckpoint) {
  crash_everywhere({1, 2}, 3, 2, 1);
}

TEST(CheckpointCrash, WhileReplacingStepKeepsOldOrNew) {
  // Step 7 exists from an abandoned run. Both versions contain the same step, so either is correct.
  crash_everywhere({7}, 7, 3, 2);
}

TEST(CheckpointCrash, DuringFirstSaveLeavesNothingOrEverything) {
  Random random(3);
  for (std::int64_t budget = 0; budget < 1200; budget += 7) {
    const TempDir dir;
    CrashingFiles files(budget);
    const bool done = save_with(files, dir / "new", 1, 1);
    files.lose(random);
    try {
      EXPECT_TRUE(holds_step(find_resume_point(dir / "new").checkpoint));
    } catch (const CheckpointError& error) {
      EXPECT_FALSE(done);
      EXPECT_THAT(error.what(), HasSubstr("there is no complete checkpoint in"));
    }
  }
}

// Forks writers, kills each of them by its own timer, and checks the files they leave.
const test::RankFunction killed_writers("killed_writers", [] {
  const std::string directory = std::getenv("PENSTOCK_TEST_DIRECTORY");
  const int rounds = std::atoi(std::getenv("PENSTOCK_TEST_ROUNDS"));
  Random random(11);
  std::int64_t last = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t microseconds = pick(random, 500, 40000);
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGALRM, [](int) { kill(getpid(), SIGKILL); });
      comm::World world = comm::init();
      CheckpointWriter writer(directory, world.group(), {.keep = 2});
      writer.save(last + 1, crash_model(last + 1, 20000));
      writer.wait();  // from now on there is a checkpoint to fall back to
      const itimerval timer{{0, 0}, {0, microseconds}};
      setitimer(ITIMER_REAL, &timer, nullptr);
      for (std::int64_t step = last + 2;; ++step) writer.save(step, crash_model(step, 20000));
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
      std::printf("the writer was not killed\n");
      return 1;
    }
    const ResumePoint found = find_resume_point(directory);
    if (found.checkpoint.step() <= last || !holds_step(found.checkpoint) || found.skipped.size() > 1) {
      std::printf("round %d: step %lld after %lld\n", round, static_cast<long long>(found.checkpoint.step()),
                  static_cast<long long>(last));
      return 1;
    }
    last = found.checkpoint.step();
  }
  std::printf("%lld steps\n", static_cast<long long>(last));
  return 0;
});

TEST(CheckpointCrash, KilledWritersLeaveCompleteCheckpoint) {
  const TempDir dir;
  const char* more = std::getenv("PENSTOCK_KILL_ROUNDS");
  const auto done = run_program(
      {fs::read_symlink("/proc/self/exe").string()},
      {"PENSTOCK_TEST_RANKS=killed_writers", "PENSTOCK_TEST_DIRECTORY=" + dir.path(),
       std::string("PENSTOCK_TEST_ROUNDS=") + (more != nullptr ? more : "40"), "OMP_NUM_THREADS=1"});
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  std::printf("%s", done.out.c_str());
}

}  // namespace
}  // namespace penstock::checkpoint
