// Exported models that compute their own loss from labels, some of which are ignored, over many topologies,
// compared with the same training in Python (archives/own_loss.txt, make_own_loss.py).
#include "support/error_message.h"
#include "train/archive_losses.h"
#include "train/archive_run.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <optional>

namespace penstock::train {
namespace {

constexpr const char* kModels[] = {"own_next", "own_masked"};

// By model: the loss of all rows before training, then that of each step.
std::map<std::string, std::vector<double>> python_losses() {
  std::ifstream file(recipe_file("own_loss.txt"));
  std::map<std::string, std::vector<double>> losses;
  std::string model;
  double step = 0, loss = 0;
  while (file >> model >> step >> loss) losses[model].push_back(loss);
  return losses;
}

ArchiveRun own_loss(const std::string& model) {
  return {.model = model,
          .archive = {.loss_output = "loss", .computes_loss = true},
          .data = "own_loss",
          .order = {.shuffle = true, .seed = 3}};
}

RunOptions options_for(const Layout& layout) {
  RunOptions options;
  options.parallel = layout.parallel;
  options.accumulate = layout.accumulate;
  options.steps = kSteps;
  options.batch = 8;
  options.learning_rate.peak = 0.01;
  return options;
}

// The last batch of each epoch has 4 rows, and more than half of the rows have no label that counts.
TEST(TrainOwnLoss, MeansOverLabelsMatchPythonInEveryTopology) {
  at::set_num_threads(1);
  const auto expected = python_losses();
  for (const std::string model : kModels) {
    ASSERT_EQ(expected.at(model).size(), static_cast<std::size_t>(kSteps) + 1);
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(model + ", " + text_of(layout));
      const std::vector<double> losses = train_archive(own_loss(model), options_for(layout)).losses;
      ASSERT_EQ(losses.size(), static_cast<std::size_t>(kSteps));
      for (std::size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(losses[i], expected.at(model)[i + 1], 2e-4 * expected.at(model)[i + 1])
            << "step " << i + 1;
    }
  }
}

TEST(TrainOwnLoss, ValidationCountsEachLabelOnce) {
  at::set_num_threads(1);
  for (const std::string model : kModels) {
    const double expected = python_losses().at(model)[0];
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(model + ", " + text_of(layout));
      ArchiveRun test = own_loss(model);
      test.validates_on_all = true;
      RunOptions options = options_for(layout);
      options.learning_rate.peak = 0;
      options.steps = 1;
      options.eval_every = 1;
      EXPECT_NEAR(train_archive(test, options).validation_loss.value(), expected, 1e-5 * expected);
    }
  }
}

TEST(TrainOwnLoss, BatchWithoutLabelsChangesNothing) {
  at::set_num_threads(1);
  for (const std::string model : kModels) {
    RunOptions options = options_for(layouts()[3]);
    options.optimizer.kind = OptimizerKind::Sgd;
    options.steps = 2;
    RecordingObserver recorder;
    std::map<std::string, at::Tensor> before, after;
    comm::run_thread_ranks(4, [&](comm::World& world) {
      ArchiveOptions archive = own_loss(model).archive;
      archive.file = recipe_file(model + ".pt2");
      const ArchiveModel loaded = archive_model(archive);
      auto tensors = checkpoint::load_safetensors(recipe_file("own_loss.safetensors"));
      tensors.at("labels").fill_(kIgnored);
      const auto data = tensor_data(tensors, {.positional = loaded.positional,
                                              .keywords = loaded.keywords,
                                              .constants = loaded.constants,
                                              .has_target = false,
                                              .labels = loaded.labels});
      for (auto* const parameters : {&before, &after}) {
        RunOptions mine = options;
        mine.learning_rate.peak = parameters == &before ? 0 : 0.1;
        const RunResult result =
            run(world, *loaded.model, *data, mine, {.observer = &recorder, .gather_parameters = true});
        if (world.rank().value == 0) *parameters = result.parameters;
      }
    });
    EXPECT_THAT(recorder.notes, testing::Contains(testing::HasSubstr("no label of the batch counts")));
    for (const StepRecord& record : recorder.records) {
      EXPECT_EQ(record.loss, 0);
      EXPECT_EQ(record.grad_norm, 0);
    }
    ASSERT_FALSE(before.empty());
    for (const auto& [name, value] : before) EXPECT_TRUE(at::equal(after.at(name), value)) << name;
  }
}

TEST(TrainOwnLoss, GraphDecidesWhatTheLossIsAMeanOver) {
  const auto mean_of = [](const std::string& model, LossMean given) {
    return archive_model({.file = recipe_file(model + ".pt2"),
                          .loss_output = "loss",
                          .computes_loss = true,
                          .loss_mean = given});
  };
  EXPECT_EQ(mean_of("own_next", LossMean::Auto).loss_mean, LossMean::NextLabels);
  EXPECT_TRUE(mean_of("own_next", LossMean::Auto).labels->next);
  EXPECT_EQ(mean_of("own_masked", LossMean::Auto).loss_mean, LossMean::Labels);
  EXPECT_FALSE(mean_of("own_masked", LossMean::Auto).labels->next);
  const ArchiveModel rows = mean_of("own_next", LossMean::Rows);
  EXPECT_FALSE(rows.labels);
  EXPECT_TRUE(rows.model->needs_full_batches());
  EXPECT_FALSE(mean_of("own_next", LossMean::Auto).model->needs_full_batches());
}

// The labels of this model are named `targets`.
TEST(TrainOwnLoss, LabelsMayHaveAnotherName) {
  const auto open = [](const std::string& model, LossMean mean, const std::optional<std::string>& labels) {
    const bool named = model == "targets";
    return archive_model({.file = recipe_file(model + ".pt2"),
                          .loss_output = named ? "output.1" : "loss",
                          .computes_loss = true,
                          .loss_mean = mean,
                          .labels = labels});
  };
  const ArchiveModel given = open("targets", LossMean::Auto, "targets");
  EXPECT_EQ(given.loss_mean, LossMean::Labels);
  EXPECT_EQ(given.labels->name, "targets");
  EXPECT_TRUE(open("targets", LossMean::NextLabels, "targets").labels->next);
  EXPECT_EQ(open("targets", LossMean::Rows, std::nullopt).loss_mean, LossMean::Rows);
  EXPECT_ERROR(open("targets", LossMean::Auto, std::nullopt), UsageError,
               "its input 'targets' looks like labels, but is not named 'labels'");
  EXPECT_ERROR(open("targets", LossMean::Labels, std::nullopt), UsageError, "no input 'labels' of integers");
  EXPECT_ERROR(open("targets", LossMean::Auto, "other"), UsageError, "no input 'other' of integers");
  EXPECT_ERROR(open("targets", LossMean::Rows, "targets"), UsageError, "a mean over rows");
  // Tokens that are labels, too, cannot be ignored: the loss is a mean over rows.
  EXPECT_EQ(open("shared", LossMean::Auto, std::nullopt).loss_mean, LossMean::Rows);
  EXPECT_ERROR(open("shared", LossMean::Auto, "tokens"), UsageError, "has tokens of an embedding");
  // The output named `loss` is the loss.
  EXPECT_EQ(archive_model({.file = recipe_file("own_next.pt2"), .computes_loss = true}).loss_output,
            "output.loss");
}

}  // namespace
}  // namespace penstock::train
