// A model with batch norm over many topologies, compared with Python (archives/batch_norm.txt,
// make_batch_norm.py). Replicas normalize with the statistics of their own rows, so their running statistics
// differ; validation and checkpoints use those of the first replica.
#include "support/temp_dir.h"
#include "train/archive_run.h"

#include <penstock/checkpoint/checkpoint.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

namespace penstock::train {
namespace {

struct NormStep {
  double loss = 0, validation = 0;
};

std::map<std::string, std::vector<NormStep>> norm_steps() {
  std::ifstream file(recipe_file("batch_norm.txt"));
  std::map<std::string, std::vector<NormStep>> steps;
  std::string recipe;
  std::int64_t step = 0;
  NormStep one;
  while (file >> recipe >> step >> one.loss >> one.validation) steps[recipe].push_back(one);
  return steps;
}

std::string norm_recipe(const Layout& layout) {
  return "dp" + std::to_string(layout.parallel.dp) + "_a" + std::to_string(layout.accumulate) + "_m" +
         std::to_string(layout.parallel.microbatches);
}

class Evaluations : public Observer {
 public:
  void on_evaluation(std::int64_t step, double loss) override { all[step] = loss; }
  std::map<std::int64_t, double> all;
};

RunOptions norm_options(const Layout& layout) {
  RunOptions options;
  options.parallel = layout.parallel;
  options.accumulate = layout.accumulate;
  options.steps = 8;
  options.batch = 8;
  options.eval_every = 1;
  options.learning_rate.peak = 0.02;
  options.optimizer.weight_decay = 0.1;
  return options;
}

RunResult train_residual(const RunOptions& options, Observer& observer) {
  return train_archive({.model = "residual", .validates_on_all = true}, options, &observer);
}

void expect_near(double value, double expected, const std::string& what) {
  EXPECT_NEAR(value, expected, 1e-4 * std::abs(expected)) << what;
}

TEST(TrainBatchNorm, MatchesPythonInEveryTopology) {
  at::set_num_threads(1);
  const auto expected = norm_steps();
  const auto statistics = checkpoint::load_safetensors(recipe_file("batch_norm.safetensors"));
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const test::TempDir dir;
    RunOptions options = norm_options(layout);
    options.checkpoint.directory = dir / "c";
    Evaluations evaluations;
    const RunResult result = train_residual(options, evaluations);
    const std::vector<NormStep>& python = expected.at(norm_recipe(layout));
    ASSERT_EQ(result.losses.size(), python.size());
    for (std::size_t i = 0; i < python.size(); ++i) {
      const auto step = static_cast<std::int64_t>(i) + 1;
      expect_near(result.losses[i], python[i].loss, "step " + std::to_string(step));
      expect_near(evaluations.all.at(step), python[i].validation, "validation " + std::to_string(step));
    }
    const checkpoint::Checkpoint saved(*result.checkpoint);
    std::size_t compared = 0;
    for (const checkpoint::StoredTensor& tensor : saved.tensors()) {
      if (tensor.kind != checkpoint::PieceKind::Buffer) continue;
      ++compared;
      EXPECT_TRUE(at::allclose(saved.read(tensor.name),
                               statistics.at(norm_recipe(layout) + "/" + tensor.name), 1e-3, 1e-4))
          << tensor.name;
    }
    EXPECT_EQ(compared, 15U);
  }
}

void expect_same_tensors(const checkpoint::Checkpoint& a, const checkpoint::Checkpoint& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const checkpoint::StoredTensor& tensor : a.tensors())
    EXPECT_TRUE(at::equal(a.read(tensor.name, tensor.state), b.read(tensor.name, tensor.state)))
        << tensor.name << " " << tensor.state;
}

TEST(TrainBatchNorm, ResumedRunsAreBitwiseEqual) {
  at::set_num_threads(1);
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const test::TempDir dir;
    RunOptions options = norm_options(layout);
    options.checkpoint.directory = dir / "complete";
    Evaluations expected, resumed;
    const RunResult complete = train_residual(options, expected);
    options.checkpoint.directory = dir / "parts";
    options.steps = 5;
    train_residual(options, resumed);
    options.steps = 8;
    options.checkpoint.resume = true;
    const RunResult rest = train_residual(options, resumed);
    EXPECT_EQ(rest.losses, std::vector<double>(complete.losses.begin() + 5, complete.losses.end()));
    EXPECT_EQ(resumed.all, expected.all);
    expect_same_tensors(checkpoint::Checkpoint(*complete.checkpoint),
                        checkpoint::Checkpoint(*rest.checkpoint));
  }
}

}  // namespace
}  // namespace penstock::train
