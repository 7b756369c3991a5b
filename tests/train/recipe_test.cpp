// Recipes of training: optimizers, parameter groups and losses, over many topologies, compared with the same
// recipes in Python (archives/recipes.txt, make_recipes.py). Resumed runs are bitwise equal.
#include "support/error_message.h"
#include "support/temp_dir.h"
#include "train/archive_run.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

namespace penstock::train {
namespace {

std::map<std::string, std::vector<double>> python_recipes() {
  std::ifstream file(recipe_file("recipes.txt"));
  std::map<std::string, std::vector<double>> losses;
  std::string recipe;
  double step = 0, loss = 0;
  while (file >> recipe >> step >> loss) losses[recipe].push_back(loss);
  return losses;
}

struct Recipe {
  OptimizerOptions optimizer{};
  double rate = 0;
  ParameterGroupOptions parameters{};
};

const std::map<std::string, Recipe>& recipes() {
  using enum OptimizerKind;
  static const std::map<std::string, Recipe> all = {
      {"sgd_nesterov", {{.kind = Sgd, .weight_decay = 0.01, .momentum = 0.8, .nesterov = true}, 0.1}},
      {"sgd_dampening", {{.kind = Sgd, .momentum = 0.8, .dampening = 0.3}, 0.1}},
      {"adam", {{.kind = Adam, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6}, 0.01}},
      {"adamw_amsgrad", {{.kind = AdamW, .weight_decay = 0.1, .amsgrad = true}, 0.01}},
      {"adagrad",
       {{.kind = Adagrad, .weight_decay = 0.01, .rate_decay = 0.1, .initial_accumulator = 0.1}, 0.05}},
      {"rmsprop", {{.kind = RmsProp, .weight_decay = 0.01, .alpha = 0.9}, 0.005}},
      {"rmsprop_centered", {{.kind = RmsProp, .momentum = 0.5, .centered = true}, 0.005}},
      {"no_decay", {{.kind = AdamW, .weight_decay = 0.5}, 0.01, {.no_decay = {"norms", "biases"}}}},
      {"lr_scale",
       {{.kind = AdamW, .weight_decay = 0},
        0.01,
        {.rate_scales = {{"layers.1", 3.0}, {"layers.?.up.weight", 1.0}, {"layers.1.up.weight", 0.1}}}}},
      {"freeze",
       {{.kind = AdamW, .weight_decay = 0.1},
        0.01,
        {.freeze = {"head.weight", "layers.0", "layers.*.norm"}}}}};
  return all;
}

RunOptions options_for(const Recipe& recipe, const Layout& layout) {
  RunOptions options;
  options.parallel = layout.parallel;
  options.accumulate = layout.accumulate;
  options.steps = kSteps;
  options.batch = 8;
  options.optimizer = recipe.optimizer;
  options.learning_rate.peak = recipe.rate;
  options.parameters = recipe.parameters;
  return options;
}

void expect_near(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 2e-4 * expected[i]) << "step " << i + 1;
}

TEST(TrainRecipe, OptimizersAndGroupsMatchPythonInEveryTopology) {
  at::set_num_threads(1);
  const auto expected = python_recipes();
  for (const auto& [name, recipe] : recipes()) {
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(name + ", " + text_of(layout));
      expect_near(train_archive({}, options_for(recipe, layout)).losses, expected.at(name));
    }
  }
}

TEST(TrainRecipe, ResumedRunsAreBitwiseEqual) {
  at::set_num_threads(1);
  for (const auto& [name, recipe] : recipes()) {
    for (const std::size_t index : {1U, 4U, 5U, 6U, 7U}) {
      const Layout& layout = layouts()[index];
      SCOPED_TRACE(name + ", " + text_of(layout));
      const test::TempDir dir;
      RunOptions options = options_for(recipe, layout);
      options.steps = 6;
      const RunResult whole = train_archive({}, options);
      options.checkpoint.directory = dir / "c";
      options.steps = 3;
      train_archive({}, options);
      options.checkpoint.resume = true;
      options.steps = 6;
      const RunResult resumed = train_archive({}, options);
      ASSERT_EQ(resumed.first_step, 4);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(resumed.losses.at(i), whole.losses.at(i + 3));
      for (const auto& [parameter, value] : whole.parameters)
        EXPECT_TRUE(at::equal(resumed.parameters.at(parameter), value)) << parameter;
    }
  }
}

TEST(TrainRecipe, FrozenParametersStayAndHaveNoState) {
  at::set_num_threads(1);
  RunOptions options = options_for(recipes().at("freeze"), layouts()[0]);
  options.learning_rate.peak = 0;
  options.steps = 1;
  const auto initial = train_archive({}, options).parameters;
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const test::TempDir dir;
    options = options_for(recipes().at("freeze"), layout);
    options.steps = 2;
    options.checkpoint.directory = dir / "c";
    const RunResult result = train_archive({}, options);
    const checkpoint::Checkpoint saved(*result.checkpoint);
    std::set<std::string> with_state;
    for (const checkpoint::StoredTensor& tensor : saved.tensors())
      if (tensor.kind == checkpoint::PieceKind::Optimizer) with_state.insert(tensor.name);
    for (const auto& [name, value] : result.parameters) {
      const bool frozen =
          name == "token.weight" || name.starts_with("layers.0.") || name.find(".norm.") != std::string::npos;
      EXPECT_EQ(at::equal(value, initial.at(name)), frozen) << name;
      EXPECT_EQ(with_state.contains(name), !frozen) << name;
      EXPECT_NE(saved.find(name), nullptr) << name;
    }
  }
}

TEST(TrainRecipe, PatternsMustSelectParameters) {
  const auto rejects = [](const ParameterGroupOptions& parameters, const std::string& text) {
    RunOptions options = options_for({{}, 0.1}, layouts()[0]);
    options.parameters = parameters;
    const ArchiveModel model = archive_model({.file = recipe_file("language.pt2")});
    EXPECT_ERROR(check_before_start(*model.model, options), UsageError, text);
  };
  rejects({.freeze = {"layer.0"}}, "freeze: no parameter or module of the model matches 'layer.0'");
  rejects({.freeze = {"biases"}}, "freeze: no parameter or module of the model matches 'biases'");
  rejects({.no_decay = {"*.bias"}}, "no_decay: no parameter or module of the model matches '*.bias'");
  rejects({.rate_scales = {{"haed", 2}}}, "rate_scales: no parameter or module of the model matches 'haed'");
  rejects({.rate_scales = {{"head", -1}}}, "rate_scales of 'head' must be a non-negative number");
  rejects({.freeze = {"*"}}, "every parameter of the model is frozen");
}

at::Tensor with_every_third_ignored(const at::Tensor& target) {
  at::Tensor flat = target.flatten().clone();
  flat.slice(0, 0, std::nullopt, 3).fill_(-100);
  return flat.view(target.sizes());
}

at::Tensor soft_targets(const at::Tensor& target) {
  return 0.7 * at::one_hot(target, 17).to(at::kFloat) + 0.3 / 17;
}

std::vector<double> some_weights() {
  std::vector<double> weights;
  for (int i = 0; i < 17; ++i) weights.push_back(0.5 + i / 8.0);
  return weights;
}

const std::map<std::string, ArchiveRun>& loss_recipes() {
  using enum LossKind;
  const LossOptions smoothing{.label_smoothing = 0.2}, weights{.class_weights = some_weights()},
      both{.label_smoothing = 0.2, .class_weights = some_weights()};
  const auto hard = with_every_third_ignored;
  static const std::map<std::string, ArchiveRun> all = {
      {"label_smoothing", {"language", {.loss_options = smoothing}, hard}},
      {"class_weights", {"language", {.loss_options = weights}, hard}},
      {"weights_and_smoothing", {"language", {.loss_options = both}, hard}},
      {"soft_targets", {"language", {}, soft_targets}},
      {"soft_weights_smoothing", {"language", {.loss_options = both}, soft_targets}},
      {"bce", {"language", {.loss = Bce}, soft_targets}},
      {"bce_weights", {"language", {.loss = Bce, .loss_options = weights}, soft_targets}},
      {"l1", {"mlp", {.loss = L1}, {}}}};
  return all;
}

TEST(TrainRecipe, LossesMatchPythonInEveryTopology) {
  at::set_num_threads(1);
  const auto expected = python_recipes();
  for (const auto& [name, test] : loss_recipes()) {
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(name + ", " + text_of(layout));
      expect_near(train_archive(test, options_for({{.kind = OptimizerKind::Sgd}, 0.2}, layout)).losses,
                  expected.at(name));
    }
  }
}

TEST(TrainRecipe, LossOptionsMustApply) {
  const auto rejects = [](LossKind loss, const LossOptions& options, const std::string& text) {
    EXPECT_ERROR(archive_model({.file = recipe_file("language.pt2"), .loss = loss, .loss_options = options}),
                 UsageError, text);
  };
  rejects(LossKind::Mse, {.label_smoothing = 0.1}, "label_smoothing does not apply to the loss mse");
  rejects(LossKind::L1, {.class_weights = {1, 2}}, "class_weights do not apply to the loss l1");
  rejects(LossKind::CrossEntropy, {.label_smoothing = 1.5}, "label_smoothing must be at least 0");
  rejects(LossKind::CrossEntropy, {.class_weights = {1, 2}},
          "there are 2 class_weights, but the output has 17 classes");
  rejects(LossKind::Bce, {.class_weights = std::vector<double>(17, 0)}, "all class_weights are 0");
  std::vector<double> one_zero(17, 1);
  one_zero[3] = 0;
  rejects(LossKind::CrossEntropy, {.label_smoothing = 0.1, .class_weights = one_zero},
          "label_smoothing cannot be combined with a class weight of 0");
  rejects(LossKind::Bce, {.class_weights = std::vector<double>(17, -1)}, "a class weight must be");
}

}  // namespace
}  // namespace penstock::train
