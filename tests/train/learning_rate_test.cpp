// Learning-rate schedules compared with those of PyTorch (learning_rates.txt, make_learning_rates.py), and
// with formulas.
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/train/learning_rate.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <fstream>
#include <numbers>

namespace penstock::train {
namespace {

using Kind = LearningRateKind;

TEST(TrainLearningRate, MatchesSchedulersOfPyTorch) {
  const std::map<std::string, LearningRateOptions> options = {
      {"linear", {.kind = Kind::Linear, .final_fraction = 0.05}},
      {"cosine", {.kind = Kind::Cosine, .final_fraction = 0.05}},
      {"polynomial", {.kind = Kind::Polynomial, .final_fraction = 0, .power = 2.5}},
      {"wsd", {.kind = Kind::WarmupStableDecay, .final_fraction = 0.05, .decay = 9}},
      {"step", {.kind = Kind::Step, .period = 8, .gamma = 0.5}},
      {"one_cycle", {.kind = Kind::OneCycle}}};
  std::ifstream file(PENSTOCK_SOURCE_DIR "/tests/train/learning_rates.txt");
  std::string name;
  std::int64_t step = 0;
  double expected = 0;
  int lines = 0;
  for (; file >> name >> step >> expected; ++lines) {
    LearningRateOptions one = options.at(name);
    one.peak = 0.3;
    one.warmup = 6;
    EXPECT_EQ(to_string(one.kind), name);
    EXPECT_NEAR(LearningRate(one, 40).at(step), expected, 1e-14) << name << ", step " << step;
  }
  EXPECT_EQ(lines, 6 * 40);
}

TEST(TrainLearningRate, WarmsUpHoldsAndDecays) {
  const LearningRate rate({Kind::Cosine, 2.0, 10, 0.1}, 110);
  EXPECT_EQ(rate.at(1), 0.2);
  EXPECT_EQ(rate.at(10), 2.0);
  EXPECT_NEAR(rate.at(60), 2.0 * (0.1 + 0.9 * 0.5), 1e-12);
  EXPECT_NEAR(rate.at(35), 2.0 * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi / 4))), 1e-12);
  EXPECT_DOUBLE_EQ(rate.at(110), 0.2);
  EXPECT_EQ(rate.at(1000), rate.at(110));
  EXPECT_EQ(LearningRate({Kind::Constant, 2.0, 0}, 110).at(99), 2.0);
}

TEST(TrainLearningRate, HasDefaults) {
  for (const Kind kind : {Kind::Linear, Kind::Cosine, Kind::Polynomial, Kind::WarmupStableDecay})
    EXPECT_DOUBLE_EQ(LearningRate({kind, 2.0, 3}, 50).at(50), 0.2) << to_string(kind);
  EXPECT_NEAR(LearningRate({Kind::OneCycle, 2.0, 3}, 50).at(50), 8e-6, 1e-15);
  const LearningRate stable({Kind::WarmupStableDecay, 2.0, 3}, 50);  // decays in 5 steps
  EXPECT_EQ(stable.at(45), 2.0);
  EXPECT_LT(stable.at(46), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate({Kind::WarmupStableDecay, 2.0, 1}, 8).at(8), 0.2);  // decays in 1 step
  // A warmup that leaves no room for the decay.
  EXPECT_EQ(LearningRate({Kind::WarmupStableDecay, 2.0, 50}, 50).at(50), 2.0);
}

TEST(TrainLearningRate, RejectsInvalidOptions) {
  const auto rejects = [](const LearningRateOptions& options, const std::string& text) {
    EXPECT_ERROR(LearningRate(options, 10), UsageError, text);
  };
  rejects({.kind = Kind::Step}, "step needs a period");
  rejects({.kind = Kind::OneCycle}, "needs a warmup");
  rejects({.final_fraction = 0.5}, "learning_rate.final_fraction does not apply to the schedule constant");
  rejects({.kind = Kind::Cosine, .power = 2}, "learning_rate.power does not apply to the schedule cosine");
  rejects({.kind = Kind::Cosine, .decay = 2}, "learning_rate.decay does not apply");
  rejects({.kind = Kind::Linear, .period = 2}, "learning_rate.period does not apply");
  rejects({.kind = Kind::Linear, .gamma = 2}, "learning_rate.gamma does not apply");
  rejects({.kind = Kind::Linear, .start_fraction = 0.1}, "learning_rate.start_fraction does not apply");
  rejects({.kind = Kind::Step, .period = 0}, "learning_rate.period must be at least 1");
  rejects({.kind = Kind::WarmupStableDecay, .decay = -1}, "learning_rate.decay must be at least 0");
  rejects({.kind = Kind::Polynomial, .power = NAN}, "learning_rate.power must be");
  EXPECT_ERROR(LearningRate({}, 0), UsageError, "steps must be at least 1");
}

TEST(TrainLearningRate, SchedulerKeepsRatesOfGroups) {
  using torch::optim::SGDOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : {0.5, 0.05})
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}, torch::requires_grad())},
                        std::make_unique<SGDOptions>(rate));
  torch::optim::SGD optimizer(groups, SGDOptions(1.0));
  const LearningRateOptions options{.kind = Kind::Cosine, .peak = 0.5, .warmup = 3};
  const LearningRate expected(options, 12);
  LearningRateScheduler scheduler(optimizer, options, 12);
  const auto rate_of = [&](int group) { return optimizer.param_groups().at(group).options().get_lr(); };
  for (std::int64_t step = 1; step <= 12; ++step) {
    EXPECT_EQ(scheduler.current_step(), step);
    EXPECT_EQ(rate_of(0), expected.at(step));
    EXPECT_DOUBLE_EQ(rate_of(1), expected.at(step) / 10);
    scheduler.step();
  }
  scheduler.set_step(5);
  EXPECT_EQ(rate_of(0), expected.at(5));
  EXPECT_ERROR(scheduler.set_step(0), UsageError, "step must be at least 1");
}

}  // namespace
}  // namespace penstock::train
