// Exported models with other layers than linear ones, and with classes that are not in the last dim, over
// many topologies, compared with a plain training script in Python (archives/networks.txt, make_networks.py).
#include "support/error_message.h"
#include "train/archive_run.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

namespace penstock::train {
namespace {

using schedule::ScheduleKind;

std::map<std::string, std::vector<double>> python_networks() {
  std::ifstream file(recipe_file("networks.txt"));
  std::map<std::string, std::vector<double>> losses;
  std::string run;
  double step = 0, loss = 0;
  while (file >> run >> step >> loss) losses[run].push_back(loss);
  return losses;
}

void expect_python(const std::string& run, const ArchiveRun& test, const Layout& layout) {
  SCOPED_TRACE(run + ", " + text_of(layout) + " M " + std::to_string(layout.parallel.microbatches));
  static const auto expected = python_networks();
  RunOptions options;
  options.parallel = layout.parallel;
  options.accumulate = layout.accumulate;
  options.steps = kSteps;
  options.batch = 12;
  options.optimizer.weight_decay = 0.1;
  options.learning_rate.peak = 0.01;
  const std::vector<double> losses = train_archive(test, options).losses;
  ASSERT_EQ(losses.size(), expected.at(run).size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected.at(run)[i], 2e-4 * expected.at(run)[i]) << "step " << i + 1;
}

TEST(TrainNetworks, LstmMatchesPython) {
  at::set_num_threads(1);
  for (const Layout& layout : std::vector<Layout>{
           {{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1}},
           {{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 4}},
           {{.pp = 3, .schedule = ScheduleKind::ZB1P, .microbatches = 3}},
           {{.pp = 2, .schedule = ScheduleKind::ZBVZeroBubble, .stages_per_rank = 2, .microbatches = 4}},
           {{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2, .recompute = true}},
           {{.pp = 2,
           .dp = 2,
           .sharding = Sharding::Full,
           .schedule = ScheduleKind::OneFOneB,
           .microbatches = 2}}})
    expect_python("lstm", {.model = "lstm"}, layout);
}

// A batch norm sees one microbatch at a time, so the results depend on their number, but on nothing else.
TEST(TrainNetworks, ResNetMatchesPythonWithTheSameMicrobatches) {
  at::set_num_threads(1);
  for (const int microbatches : {1, 3}) {
    const std::string run = "resnet_" + std::to_string(microbatches);
    for (const Layout& layout :
         std::vector<Layout>{{{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = microbatches}},
                             {{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = microbatches}},
                             {{.pp = 3, .schedule = ScheduleKind::ZB1P, .microbatches = microbatches}},
                             {{.pp = 2,
                             .schedule = ScheduleKind::ZBVZeroBubble,
                             .stages_per_rank = 2,
                             .microbatches = microbatches}}})
      expect_python(run, {.model = "resnet"}, layout);
  }
  expect_python("resnet_3", {.model = "resnet"},
                {{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 1}, 3});
}

constexpr std::int64_t kClasses = 5;

at::Tensor every_third_ignored(const at::Tensor& target) {
  at::Tensor flat = target.flatten().clone();
  flat.slice(0, 0, std::nullopt, 3).fill_(-100);
  return flat.view(target.sizes());
}

at::Tensor soft_classes(const at::Tensor& target) {
  return 0.8 * at::one_hot(target, kClasses).movedim(-1, 1).to(at::kFloat) + 0.2 / kClasses;
}

TEST(TrainNetworks, ClassesInAnotherDimMatchPython) {
  at::set_num_threads(1);
  std::vector<double> weights;
  for (int i = 0; i < kClasses; ++i) weights.push_back(0.5 + i / 4.0);
  const LossOptions classes{.class_dim = 1}, weighted{.class_weights = weights, .class_dim = 1},
      smoothed{.label_smoothing = 0.1, .class_weights = weights, .class_dim = 1};
  const std::map<std::string, ArchiveRun> runs = {
      {"pixels", {"pixels", {.loss_options = classes}, every_third_ignored}},
      {"pixels_weights", {"pixels", {.loss_options = smoothed}, every_third_ignored}},
      {"pixels_soft", {"pixels", {.loss_options = weighted}, soft_classes}},
      {"pixels_bce", {"pixels", {.loss = LossKind::Bce, .loss_options = weighted}, soft_classes}}};
  for (const auto& [name, test] : runs) {
    for (const Layout& layout :
         std::vector<Layout>{{{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1}},
                             {{.pp = 2, .schedule = ScheduleKind::ZB1P, .microbatches = 3}},
                             {{.pp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 1}, 2}})
      expect_python(name, test, layout);
  }
}

TEST(TrainNetworks, ClassDimMustExist) {
  const auto rejects = [](LossKind loss, const LossOptions& options, const std::string& text) {
    EXPECT_ERROR(archive_model({.file = recipe_file("pixels.pt2"), .loss = loss, .loss_options = options}),
                 UsageError, text);
  };
  rejects(LossKind::CrossEntropy, {.class_dim = 4},
          "class_dim is 4, but the output 'output' has only 4 dims");
  rejects(LossKind::CrossEntropy, {.class_dim = 0}, "class_dim must be at least 1");
  rejects(LossKind::Mse, {.class_dim = 1}, "class_dim does not apply to the loss mse");
  rejects(LossKind::CrossEntropy, {.class_weights = {1, 2, 3}, .class_dim = 1},
          "there are 3 class_weights, but the output has 5 classes");
}

}  // namespace
}  // namespace penstock::train
