// The cross entropy of the built-in GPT with class weights and label smoothing: losses and gradients of a
// dense run with libtorch's cross entropy over the full batch, in every topology.
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/models/gpt.h>
#include <penstock/train/trainer.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <cmath>

namespace penstock::train {
namespace {

using schedule::ScheduleKind;

constexpr std::int64_t kVocabulary = 11, kLength = 8, kBatch = 8, kValidationRows = 5, kSteps = 3, kRare = 3,
                       kValidationStep = 100;
constexpr double kRate = 0.5;

models::GptOptions small_model() {
  return {.vocabulary = kVocabulary, .context = kLength, .layers = 2, .heads = 2, .width = 16};
}

// Random tokens. All labels of row 2 are ignored, and those of row 5 are of one class, so that a microbatch
// may have no weight at all.
std::pair<at::Tensor, at::Tensor> rows_of(std::int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step));
  const at::Tensor tokens = at::randint(kVocabulary, {kBatch, kLength}, generator, at::kLong);
  at::Tensor target = tokens.roll(1, 1).masked_fill(at::rand({kBatch, kLength}, generator).lt(0.3), -100);
  target.select(0, 2).fill_(-100);
  target.select(0, 5).fill_(kRare);
  return {tokens, target};
}

class LabeledRows : public DataSource {
 public:
  Batch training(std::int64_t step, std::int64_t, Rows rows) const override {
    const auto [tokens, target] = rows_of(step);
    const std::int64_t count = rows.end - rows.begin;
    return {{tokens.narrow(0, rows.begin, count)}, {}, target.narrow(0, rows.begin, count), {}, count};
  }
  std::int64_t validation_rows() const override { return kValidationRows; }
  Batch validation(Rows rows) const override { return training(kValidationStep, kBatch, rows); }
};

struct Curve {
  std::vector<double> losses, norms;
  double validation = 0;
};

// SGD over full batches.
Curve dense_run(const LossOptions& loss_options) {
  models::Gpt model(small_model());
  models::initialize(*model, small_model(), 1);
  torch::nn::functional::CrossEntropyFuncOptions options;
  options.label_smoothing(loss_options.label_smoothing);
  if (!loss_options.class_weights.empty())
    options.weight(torch::tensor(loss_options.class_weights, torch::kFloat));
  const auto loss_of = [&](std::int64_t step, std::int64_t rows) {
    const auto [tokens, target] = rows_of(step);
    return torch::nn::functional::cross_entropy(model->forward(tokens.narrow(0, 0, rows)).flatten(0, 1),
                                                target.narrow(0, 0, rows).flatten(), options);
  };
  Curve curve;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const at::Tensor loss = loss_of(step, kBatch);
    loss.backward();
    double squares = 0;
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) {
      squares += parameter.grad().square().sum().item<double>();
      parameter.sub_(parameter.grad(), kRate);
      parameter.mutable_grad() = at::Tensor();
    }
    curve.losses.push_back(loss.item<double>());
    curve.norms.push_back(std::sqrt(squares));
  }
  curve.validation = loss_of(kValidationStep, kValidationRows).item<double>();
  return curve;
}

class Records : public Observer {
 public:
  void on_step(const StepRecord& record) override {
    curve.losses.push_back(record.loss);
    curve.norms.push_back(record.grad_norm);
  }
  void on_evaluation(std::int64_t, double loss) override { curve.validation = loss; }
  Curve curve;
};

Curve distributed_run(const LossOptions& loss, const ParallelOptions& parallel, std::int64_t accumulate) {
  RunOptions options;
  options.parallel = parallel;
  options.steps = kSteps;
  options.batch = kBatch;
  options.accumulate = accumulate;
  options.optimizer.kind = OptimizerKind::Sgd;
  options.learning_rate.peak = kRate;
  options.eval_every = kSteps;
  Records records;
  comm::run_thread_ranks(parallel.ranks(), [&](comm::World& world) {
    run(world, *gpt_model(small_model(), 1, {}, loss), LabeledRows(), options, {.observer = &records});
  });
  return records.curve;
}

std::vector<double> some_weights() {
  std::vector<double> weights;
  for (std::int64_t i = 0; i < kVocabulary; ++i) weights.push_back(0.25 + static_cast<double>(i * i) / 20);
  return weights;
}

// 11 classes over 2 tensor-parallel ranks are shards of 6 and 5.
TEST(TrainGptLosses, MatchDenseCrossEntropyInEveryTopology) {
  at::set_num_threads(1);
  std::vector<double> without_rare = some_weights();
  without_rare[kRare] = 0;
  const std::vector<std::pair<ParallelOptions, std::int64_t>> topologies = {
      {{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1}, 1},
      {{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 8}, 1},
      {{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 4}, 2},
      {{.pp = 2, .schedule = ScheduleKind::ZBVZeroBubble, .stages_per_rank = 2, .microbatches = 4}, 1},
      {{.pp = 2, .dp = 2, .sharding = Sharding::Full, .schedule = ScheduleKind::OneFOneB, .microbatches = 2},
       1},
      {{.pp = 1, .tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 1}, 1},
      {{.pp = 1, .tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 8}, 1},
      {{.pp = 2, .tp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2}, 2}};
  double plain = 0;
  for (const LossOptions& loss : {LossOptions{}, LossOptions{.class_weights = some_weights()},
                                  LossOptions{.class_weights = without_rare},
                                  LossOptions{.label_smoothing = 0.3, .class_weights = some_weights()}}) {
    const Curve expected = dense_run(loss);
    if (plain == 0) plain = expected.losses[0];
    if (!loss.class_weights.empty()) EXPECT_GT(std::abs(expected.losses[0] - plain), 1e-3);
    for (const auto& [parallel, accumulate] : topologies) {
      SCOPED_TRACE(testing::PrintToString(loss.class_weights) + " smoothing " +
                   std::to_string(loss.label_smoothing) + ", pp " + std::to_string(parallel.pp) + " tp " +
                   std::to_string(parallel.tp) + " dp " + std::to_string(parallel.dp) + " M " +
                   std::to_string(parallel.microbatches) + " A " + std::to_string(accumulate));
      const Curve found = distributed_run(loss, parallel, accumulate);
      ASSERT_EQ(found.losses.size(), expected.losses.size());
      for (std::size_t i = 0; i < expected.losses.size(); ++i) {
        EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5) << "step " << i + 1;
        EXPECT_NEAR(found.norms[i], expected.norms[i], 2e-5) << "step " << i + 1;
      }
      EXPECT_NEAR(found.validation, expected.validation, 1e-5);
    }
  }
}

TEST(TrainGptLosses, OptionsMustFitVocabulary) {
  const auto rejects = [](const LossOptions& loss, const std::string& text) {
    EXPECT_ERROR(gpt_model(small_model(), 1, {}, loss), UsageError, text);
  };
  rejects({.class_weights = {1, 2}}, "there are 2 class_weights, but the output has 11 classes");
  rejects({.class_weights = std::vector<double>(kVocabulary, 0)}, "all class_weights are 0");
  rejects({.label_smoothing = 2}, "label_smoothing must be at least 0");
}

}  // namespace
}  // namespace penstock::train
