// Runs that resume from a checkpoint: bitwise equal if nothing changed, and close in any other topology.
#include "small_run.h"
#include "support/error_message.h"
#include "support/program.h"

#include <penstock/base/error.h>

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace penstock::train {
namespace {

using test::small_options;
using test::small_run;
using test::TempDir;
using test::Topology;

const std::vector<Topology> kTopologies = {{1, 1, 1, 2, "GPipe"},
                                           {2, 1, 1, 4, "1F1B"},
                                           {2, 1, 2, 4, "ZBVZeroBubble"},
                                           {1, 2, 1, 2, "1F1B"},
                                           {2, 2, 1, 2, "ZB1P"},
                                           {2, 2, 1, 2, "1F1B", Sharding::Full},
                                           {2, 1, 1, 2, "1F1B", Sharding::None, 2},
                                           {1, 2, 1, 2, "1F1B", Sharding::Full, 2},
                                           {2, 2, 1, 2, "ZB1P", Sharding::Gradients},
                                           {1, 2, 1, 2, "GPipe", Sharding::Optimizer},
                                           {2, 1, 1, 4, "auto"}};

RunOptions options_of(const Topology& topology, std::int64_t steps, const std::string& directory,
                      bool resume) {
  RunOptions options = test::with(topology);
  options.steps = steps;
  options.checkpoint = {.directory = directory, .resume = resume};
  return options;
}

TEST(TrainResume, IsBitwiseEqualToUninterruptedRun) {
  at::set_num_threads(1);
  for (const Topology& topology : kTopologies) {
    SCOPED_TRACE(topology.schedule);
    const TempDir dir;
    const double dropout = topology.tp > 1 ? 0 : 0.1;
    RunOptions first = options_of(topology, 8, dir / "uninterrupted", false);
    first.checkpoint.every = 5;
    first.checkpoint.keep = 9;
    const auto uninterrupted = small_run(first, nullptr, true, dropout);
    EXPECT_EQ(uninterrupted.checkpoint, dir / "uninterrupted/step-00000008");
    [[maybe_unused]] const int removed =
        std::system(("rm -r " + (dir / "uninterrupted/step-00000008")).c_str());
    const auto rest = small_run(options_of(topology, 8, dir / "uninterrupted", true), nullptr, true, dropout);
    EXPECT_EQ(rest.losses, std::vector<double>(uninterrupted.losses.begin() + 5, uninterrupted.losses.end()));
    for (const auto& [name, tensor] : uninterrupted.parameters)
      EXPECT_TRUE(at::equal(rest.parameters.at(name), tensor)) << name;
  }
}

TEST(TrainResume, ContinuesInAnyOtherTopology) {
  at::set_num_threads(1);
  const TempDir dir;
  const auto uninterrupted = small_run(options_of(kTopologies[0], 8, dir / "uninterrupted", false)).losses;
  for (std::size_t from = 0; from < kTopologies.size(); ++from) {
    const std::string saved = dir / ("from" + std::to_string(from));
    small_run(options_of(kTopologies[from], 4, saved, false));
    for (std::size_t to = 0; to < kTopologies.size(); ++to) {
      SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
      const std::string copy = saved + "-" + std::to_string(to);
      [[maybe_unused]] const int copied = std::system(("cp -r " + saved + " " + copy).c_str());
      const auto rest = small_run(options_of(kTopologies[to], 8, copy, true)).losses;
      ASSERT_EQ(rest.size(), 4U);
      for (std::size_t i = 0; i < 4; ++i)
        EXPECT_NEAR(rest[i], uninterrupted[i + 4], 1e-4 * uninterrupted[i + 4]);
    }
  }
}

class Notes : public Observer {
 public:
  void on_message(const std::string& text) override { all += text + "\n"; }
  std::string all;
};

TEST(TrainResume, SkipsDamagedCheckpointAndReportsIt) {
  at::set_num_threads(1);
  const TempDir dir;
  RunOptions options = options_of(kTopologies[1], 6, dir / "c", false);
  options.checkpoint.every = 3;
  small_run(options);
  // One flipped byte in the newest checkpoint.
  const std::string newest = dir / "c/step-00000006";
  [[maybe_unused]] const int done = std::system(
      ("f=$(ls " + newest +
       "/*.safetensors | head -1); printf '\\377' | dd of=$f bs=1 seek=900 conv=notrunc 2>/dev/null")
          .c_str());
  Notes notes;
  const auto rest = small_run(options_of(kTopologies[1], 6, dir / "c", true), &notes);
  EXPECT_EQ(rest.losses.size(), 3U);
  EXPECT_THAT(notes.all, testing::HasSubstr("step-00000006"));
}

TEST(TrainResume, LoadsPartiallyOnlyOnRequest) {
  at::set_num_threads(1);
  const TempDir dir;
  // SGD has no moving averages, which AdamW then misses.
  RunOptions options = options_of(kTopologies[1], 2, dir / "c", false);
  options.optimizer.kind = OptimizerKind::Sgd;
  small_run(options);
  options = options_of(kTopologies[1], 4, dir / "c", true);
  try {
    small_run(options);
    ADD_FAILURE() << "states that are not there were passed over in silence";
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.what()) + error.hint(), testing::HasSubstr("allow_missing"));
  }
  options.checkpoint.allow_partial = true;
  Notes notes;
  EXPECT_EQ(small_run(options, &notes).losses.size(), 2U);
  EXPECT_THAT(notes.all, testing::HasSubstr("not in the checkpoint, initial values kept: "));
}

TEST(TrainResume, RejectsIncompatibleCheckpoints) {
  at::set_num_threads(1);
  const TempDir dir;
  EXPECT_ERROR(small_run(options_of(kTopologies[1], 4, dir / "none", true)), Error,
               "there is no complete checkpoint");
  small_run(options_of(kTopologies[1], 2, dir / "c", false));
  EXPECT_ERROR(small_run(options_of(kTopologies[1], 4, dir / "c", false)), UsageError,
               "contains checkpoints of an earlier run");
}

}  // namespace
}  // namespace penstock::train
