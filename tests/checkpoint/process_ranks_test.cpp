// Checkpoints written by processes over Gloo: the writer communicates in the background while the ranks
// train, and a rank killed during a write loses only that checkpoint.
#include "support/process_ranks.h"

#include "checkpoint/commit/access.h"
#include "faulty_files.h"
#include "support/check.h"
#include "support/counted_tensors.h"
#include "support/program.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/world.h>

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace penstock::checkpoint {
namespace {

using namespace test;

std::string directory() {
  return std::getenv("PENSTOCK_TEST_DIRECTORY");
}

//! Half of a weight, and a replicated bias; every element encodes the step.
std::vector<Piece> half_of_model(int rank, std::int64_t step) {
  const Box rows{{rank * 500, 0}, {500, 40}};
  return {{.name = "weight",
           .shape = {1000, 40},
           .local = at::full({500, 40}, static_cast<double>(step)),
           .region = rows},
          full_piece("bias", at::full({40}, static_cast<double>(step)))};
}

const test::RankFunction saves_while_training("saves_while_training", [] {
  comm::World world = comm::init();
  const int rank = world.rank().value;
  {
    CheckpointWriter writer(directory(), world.group(), {.keep = 2});
    for (std::int64_t step = 1; step <= 12; ++step) {
      // Training traffic on the main thread while the last save is in progress.
      for (int i = 0; i < 50; ++i) {
        const at::Tensor sum = at::full({100}, rank + 1.0 + i);
        world.group().all_reduce(sum);
        CHECK_THAT(at::equal(sum, at::full({100}, 3.0 + 2 * i)));
      }
      writer.save(step, half_of_model(rank, step), {{"step", std::to_string(step)}});
    }
  }
  const ResumePoint found = find_resume_point(directory(), world.group());
  CHECK_SAME(found.checkpoint.step(), 12);
  // Loads the halves of the other rank.
  const std::vector<Piece> pieces = half_of_model(1 - rank, 0);
  const LoadReport report = found.checkpoint.load(pieces, world.group());
  CHECK_SAME(report.bytes_used, 500U * 40 * 4 + 40 * 4);
  for (const Piece& piece : pieces) CHECK_TENSORS(piece.local, at::full_like(piece.local, 12));
  return 0;
});

TEST(CheckpointProcessRanks, SaveWhileTraining) {
  const TempDir dir;
  const auto done = test::run_process_ranks("saves_while_training", 2,
                                            {.environment = {{"PENSTOCK_TEST_DIRECTORY", dir.path()}}});
  EXPECT_EQ(done.result.exit_code(), 0) << done.text();
}

const test::RankFunction killed_while_writing("killed_while_writing", [] {
  comm::World world = comm::init();
  const int rank = world.rank().value;
  HookedFiles files([&](const std::string& operation, const std::string& path) {
    const bool here = operation == "finish" && path.find(checkpoint_name(3)) != std::string::npos;
    if (here && rank == 1) raise(SIGKILL);
  });
  CheckpointWriter writer = Access::writer(directory(), world.group(), {}, files);
  try {
    for (std::int64_t step = 1; step <= 5; ++step) writer.save(step, half_of_model(rank, step));
  } catch (const PeerFailed& error) {
    std::printf("rank %d learned that rank %d failed\n", rank, error.peer().value);
    std::fflush(stdout);
  }
  return 0;
});

TEST(CheckpointProcessRanks, RankKilledDuringWriteLosesOnlyThatCheckpoint) {
  const TempDir dir;
  const auto done = test::run_process_ranks("killed_while_writing", 2,
                                            {.environment = {{"PENSTOCK_TEST_DIRECTORY", dir.path()}}});
  EXPECT_NE(done.result.exit_code(), 0);
  const ResumePoint found = find_resume_point(dir.path());
  EXPECT_EQ(found.checkpoint.step(), 2);
  EXPECT_EQ(found.skipped, std::vector<std::string>{"step-00000003.incomplete: its write did not complete"});
  EXPECT_NE(done.text().find("rank 0 learned that rank 1 failed"), std::string::npos) << done.text();
}

}  // namespace
}  // namespace penstock::checkpoint
