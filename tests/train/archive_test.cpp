// Exported models trained on several ranks, compared with the losses of a Python training loop
// (archives/losses.txt, make_archives.py) on another machine. The models use no random numbers, so processors
// differ only in the order of sums: by 5e-7 of a loss after 20 steps between kernels with and without vector
// instructions. The tests allow 1e-4, because microbatches, replicas and shards change the order of sums,
// too.
#include "support/error_message.h"
#include "support/program.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/train/trainer.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

namespace penstock::train {
namespace {

using schedule::ScheduleKind;

namespace fs = std::filesystem;

std::string archive(const std::string& name) {
  return PENSTOCK_SOURCE_DIR "/tests/train/archives/" + name;
}

std::map<std::string, std::vector<double>> python_losses() {
  std::ifstream file(archive("losses.txt"));
  std::map<std::string, std::vector<double>> losses;
  std::string model, optimizer;
  double step = 0, loss = 0;
  while (file >> model >> optimizer >> step >> loss) losses[model + " " + optimizer].push_back(loss);
  return losses;
}

struct Case {
  std::string model;
  LossKind loss;
  OptimizerKind optimizer;
  ParallelOptions parallel;
};

std::vector<double> losses_of(const Case& test, const ArchiveOptions& more = {}, std::int64_t batch = 8) {
  RunOptions options;
  options.parallel = test.parallel;
  options.steps = 20;
  options.batch = batch;
  options.grad_clip = 0.7;
  options.optimizer.kind = test.optimizer;
  const bool adam = test.optimizer == OptimizerKind::AdamW;
  options.learning_rate.peak = adam ? 0.01 : 0.1;
  options.optimizer.weight_decay = adam ? 0.02 : 0;
  options.optimizer.momentum = adam ? 0 : 0.5;
  std::vector<double> losses;
  comm::run_thread_ranks(options.parallel.ranks(), [&](comm::World& world) {
    ArchiveOptions asked = more;
    asked.file = archive(test.model + ".pt2");
    asked.loss = test.loss;
    const ArchiveModel model = archive_model(asked);
    const std::string file = test.model == "fixed" ? "language" : test.model;
    const auto data = tensor_data(checkpoint::load_safetensors(archive(file + ".safetensors")),
                                  {.positional = model.positional, .keywords = model.keywords});
    const RunResult result = run(world, *model.model, *data, options);
    if (world.rank().value == 0) losses = result.losses;
  });
  return losses;
}

TEST(TrainArchiveTraining, MatchesLossesOfPython) {
  at::set_num_threads(1);
  const auto expected = python_losses();
  ASSERT_EQ(expected.size(), 4U);
  const std::vector<ParallelOptions> topologies = {
      {.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1},
      {.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 3},
      {.pp = 2, .schedule = ScheduleKind::ZBVZeroBubble, .microbatches = 4},
      {.pp = 3, .schedule = ScheduleKind::ZB1P, .microbatches = 2},
      {.pp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2},
      {.tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 1},
      {.pp = 2, .tp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 3}};
  for (const ParallelOptions& parallel : topologies) {
    for (const auto optimizer : {OptimizerKind::AdamW, OptimizerKind::Sgd}) {
      for (const auto& [name, loss] :
           {std::pair{"language", LossKind::CrossEntropy}, {"mlp", LossKind::Mse}}) {
        const std::string key = std::string(name) + (optimizer == OptimizerKind::AdamW ? " adamw" : " sgd");
        SCOPED_TRACE(key + " " + to_string(parallel.schedule) + " pp " + std::to_string(parallel.pp) +
                     " dp " + std::to_string(parallel.dp) + " tp " + std::to_string(parallel.tp));
        const auto losses = losses_of({name, loss, optimizer, parallel});
        ASSERT_EQ(losses.size(), 20U);
        double worst = 0;
        for (std::size_t i = 0; i < 20; ++i)
          worst = std::max(worst, std::abs(losses[i] - expected.at(key)[i]) / expected.at(key)[i]);
        EXPECT_LT(worst, 1e-4);
      }
    }
  }
}

TEST(TrainArchiveTraining, SplitsAtGivenPoints) {
  at::set_num_threads(1);
  const Case test{"language", LossKind::CrossEntropy, OptimizerKind::Sgd, {.pp = 2, .microbatches = 4}};
  const auto losses = losses_of(test, {.split = {{"layers.1", graph::SplitPoint::Beginning}}});
  EXPECT_NEAR(losses[19], python_losses().at("language sgd")[19], 1e-4 * losses[19]);
  // The first rank has none of the layers that read the keyword argument.
  const auto without = losses_of(test, {.split = {{"layers.0", graph::SplitPoint::Beginning}}});
  EXPECT_NEAR(without[19], losses[19], 1e-4 * losses[19]);
  EXPECT_ERROR(losses_of(test, {.split = {{"layers.1", graph::SplitPoint::Beginning},
                                          {"layers.2", graph::SplitPoint::Beginning}}}),
               UsageError, "the split points make 3 stages, but the schedule needs 2");
  EXPECT_ERROR(losses_of(test, {.loss_output = "probabilities"}), UsageError,
               "the model has no output 'probabilities'");
}

// Measured times differ between runs and ranks: all ranks use the split positions of one rank, and a resumed
// run uses those of the previous run.
TEST(TrainArchiveTraining, ResumedRunKeepsMeasuredSplit) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions options;
  options.parallel = {.pp = 3, .schedule = ScheduleKind::OneFOneB, .microbatches = 2};
  options.batch = 8;
  options.optimizer.kind = OptimizerKind::Sgd;
  options.learning_rate.peak = 0.1;
  options.checkpoint = {.directory = dir / "c", .every = 2, .keep = 9};
  const auto train = [&](std::int64_t steps) {
    options.steps = steps;
    std::vector<double> losses;
    comm::run_thread_ranks(3, [&](comm::World& world) {
      const ArchiveModel model =
          archive_model({.file = archive("language.pt2"), .balance = pipe::BalanceBy::MeasuredTime});
      const auto data = tensor_data(checkpoint::load_safetensors(archive("language.safetensors")),
                                    {.positional = model.positional, .keywords = model.keywords});
      const RunResult result = run(world, *model.model, *data, options);
      if (world.rank().value == 0) losses = result.losses;
    });
    return losses;
  };
  const auto losses = train(4);
  const std::string positions = checkpoint::Checkpoint(dir / "c/step-00000000").note("cuts").value();
  EXPECT_EQ(std::count(positions.begin(), positions.end(), ' '), 1) << positions;
  for (const std::int64_t step : {2, 4})
    EXPECT_EQ(checkpoint::Checkpoint(dir / ("c/" + checkpoint::checkpoint_name(step))).note("cuts"),
              positions);
  fs::remove_all(dir / "c/step-00000004");
  options.checkpoint.resume = true;
  EXPECT_EQ(train(4), std::vector<double>(losses.begin() + 2, losses.end()));
  EXPECT_EQ(checkpoint::Checkpoint(dir / "c/step-00000004").note("cuts"), positions);
}

TEST(TrainArchiveTraining, FixedBatchSizeRequiresMatchingMicrobatches) {
  at::set_num_threads(1);
  Case test{"fixed", LossKind::CrossEntropy, OptimizerKind::Sgd, {.pp = 2, .microbatches = 2}};
  EXPECT_NEAR(losses_of(test)[19], python_losses().at("language sgd")[19], 1e-4);
  test.parallel.microbatches = 4;
  try {
    losses_of(test);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("fixed batch of 4"),
                                             testing::HasSubstr("microbatches of 2")));
  }
}

}  // namespace
}  // namespace penstock::train
