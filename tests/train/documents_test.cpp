// Packed documents: a run has the losses and gradients of documents that run separately, one by one.
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/models/gpt.h>
#include <penstock/train/tokens.h>
#include <penstock/train/trainer.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <cmath>
#include <limits>
#include <random>

namespace penstock::train {
namespace {

using schedule::ScheduleKind;

constexpr std::int64_t kLength = 12, kBatch = 8, kSteps = 3, kSeparator = 0;
constexpr double kRate = 0.5;

// Documents of 0 to 17 tokens: some are empty, and some are longer than a sequence.
std::vector<std::uint32_t> packed_tokens() {
  std::mt19937 random(7);
  std::vector<std::uint32_t> tokens;
  while (tokens.size() < 500) {
    for (auto left = random() % 18; left > 0; --left) tokens.push_back(1 + random() % 10);
    tokens.push_back(kSeparator);
  }
  return tokens;
}

// The half-open ranges of the documents of a sequence of `length` tokens from `begin` on.
std::vector<std::pair<std::int64_t, std::int64_t>> documents_of(const std::vector<std::uint32_t>& tokens,
                                                                std::int64_t begin, std::int64_t length) {
  std::vector<std::pair<std::int64_t, std::int64_t>> documents;
  std::int64_t first = begin;
  for (std::int64_t i = begin; i < begin + length; ++i) {
    if (tokens.at(static_cast<std::size_t>(i)) != kSeparator && i + 1 < begin + length) continue;
    documents.emplace_back(first, i + 1);
    first = i + 1;
  }
  return documents;
}

at::Tensor tokens_from(const std::vector<std::uint32_t>& tokens, std::int64_t begin, std::int64_t end) {
  return torch::tensor(std::vector<std::int64_t>(tokens.begin() + begin, tokens.begin() + end));
}

struct Curve {
  std::vector<double> losses, norms;
};

// SGD in which the model sees one document at a time, alone.
Curve separate_documents(const models::GptOptions& options, bool boundary_targets) {
  const std::vector<std::uint32_t> tokens = packed_tokens();
  models::Gpt model(options);
  models::initialize(*model, options, 1);
  Curve curve;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    at::Tensor sum = torch::zeros({});
    std::int64_t valid = 0;
    for (std::int64_t row = step * kBatch; row < (step + 1) * kBatch; ++row) {
      for (const auto& [begin, end] : documents_of(tokens, row * kLength, kLength)) {
        const at::Tensor input = tokens_from(tokens, begin, end);
        at::Tensor target = tokens_from(tokens, begin + 1, end + 1);
        if (!boundary_targets) target = target.masked_fill(input.eq(kSeparator), -100);
        const auto count = target.ne(-100).sum().item<std::int64_t>();
        valid += count;
        if (count == 0) continue;
        const at::Tensor logits = model->forward(input.unsqueeze(0))[0];
        sum = sum + torch::nn::functional::cross_entropy(logits, target) * count;
      }
    }
    const at::Tensor loss = sum / valid;
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
  return curve;
}

class Records : public Observer {
 public:
  void on_step(const StepRecord& record) override {
    curve.losses.push_back(record.loss);
    curve.norms.push_back(record.grad_norm);
  }
  Curve curve;
};

std::unique_ptr<DataSource> packed_data(const DocumentOptions& documents, bool in_keyword = true) {
  TensorDataOptions options{.positional = {"tokens"}};
  if (in_keyword) options.keywords = {"positions"};
  return tensor_data(
      sequence_table(token_memory(packed_tokens()), {.length = kLength, .documents = documents}), options);
}

Curve packed_documents(const models::GptOptions& gpt, const RunOptions& options, bool boundary_targets) {
  Records records;
  comm::run_thread_ranks(options.parallel.ranks(), [&](comm::World& world) {
    const auto data = packed_data({.separator = kSeparator,
                                   .boundary_targets = boundary_targets,
                                   .tensors = {{"positions", {DocumentTensor::Positions}}}});
    run(world, *gpt_model(gpt, 1), *data, options, {.observer = &records});
  });
  return records.curve;
}

models::GptOptions small(models::PositionKind positions) {
  return {.vocabulary = 11, .context = kLength, .layers = 4, .heads = 2, .width = 16, .positions = positions};
}

RunOptions sgd(const ParallelOptions& parallel, std::int64_t accumulate = 1) {
  RunOptions options;
  options.parallel = parallel;
  options.steps = kSteps;
  options.batch = kBatch;
  options.accumulate = accumulate;
  options.optimizer.kind = OptimizerKind::Sgd;
  options.learning_rate.peak = kRate;
  return options;
}

void expect_close(const Curve& found, const Curve& expected, double tolerance = 1e-5) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], tolerance * expected.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(found.norms[i], expected.norms[i], 3 * tolerance * expected.norms[i]) << "step " << i + 1;
  }
}

TEST(TrainDocuments, RunLikeSeparateDocumentsInEveryTopology) {
  at::set_num_threads(1);
  const std::vector<std::pair<ParallelOptions, std::int64_t>> topologies = {
      {{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1}, 1},
      {{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 3, .recompute = true}, 1},
      {{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2}, 2},
      {{.pp = 2, .schedule = ScheduleKind::ZBVZeroBubble, .stages_per_rank = 2, .microbatches = 4}, 1},
      {{.pp = 3, .schedule = ScheduleKind::ZB1P, .microbatches = 3, .recompute = true}, 1},
      {{.pp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2}, 1},
      {{.pp = 1, .tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 2}, 1},
      {{.pp = 2, .tp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2, .recompute = true}, 1},
      {{.pp = 1, .dp = 2, .sharding = Sharding::Full, .schedule = ScheduleKind::GPipe, .microbatches = 2}, 1},
      {{.pp = 2,
        .tp = 2,
        .dp = 2,
        .sharding = Sharding::Full,
        .schedule = ScheduleKind::OneFOneB,
        .microbatches = 2},
       2}};
  for (const auto kind : {models::PositionKind::Rotary, models::PositionKind::Learned}) {
    for (const bool boundary_targets : {true, false}) {
      const Curve expected = separate_documents(small(kind), boundary_targets);
      for (const auto& [parallel, accumulate] : topologies) {
        SCOPED_TRACE(to_string(parallel.schedule) + " pp " + std::to_string(parallel.pp) + " tp " +
                     std::to_string(parallel.tp) + " dp " + std::to_string(parallel.dp) +
                     (kind == models::PositionKind::Rotary ? " rotary" : " learned"));
        expect_close(packed_documents(small(kind), sgd(parallel, accumulate), boundary_targets), expected);
      }
    }
  }
}

// Autocast chooses other kernels.
TEST(TrainDocuments, RunLikeSeparateDocumentsWithAutocast) {
  at::set_num_threads(1);
  const Curve expected = separate_documents(small(models::PositionKind::Rotary), true);
  RunOptions options = sgd({.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2});
  for (const Precision precision : {Precision::Bfloat16, Precision::Float16}) {
    options.precision = precision;
    expect_close(packed_documents(small(models::PositionKind::Rotary), options, true), expected, 1e-2);
  }
}

TEST(TrainDocuments, DifferFromSequencesWithoutDocuments) {
  at::set_num_threads(1);
  const RunOptions options = sgd({.pp = 1, .microbatches = 2});
  Records records;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    run(world, *gpt_model(small(models::PositionKind::Rotary), 1), *packed_data({}, false), options,
        {.observer = &records});
  });
  const Curve packed = packed_documents(small(models::PositionKind::Rotary), options, true);
  EXPECT_GT(std::abs(packed.losses[0] - records.curve.losses[0]), 1e-4);
}

std::vector<std::int64_t> numbers_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

TEST(TrainDocuments, TableDescribesThem) {
  // Two rows of 5 and a padded one; 9 ends a document.
  const auto stream = token_memory({9, 1, 2, 9, 9, 3, 4, 5, 6, 9, 7, 8});
  const DocumentOptions documents{.separator = 9,
                                  .boundary_targets = false,
                                  .tensors = {{"p", {DocumentTensor::Positions}},
                                              {"m", {DocumentTensor::Mask}},
                                              {"h", {DocumentTensor::Mask, at::kHalf, true}}}};
  const auto table = sequence_table(stream, {.length = 5, .input = "x", .documents = documents});
  EXPECT_EQ(numbers_of(table->take("x", {0, 1})), (std::vector<std::int64_t>{9, 1, 2, 9, 9, 3, 4, 5, 6, 9}));
  EXPECT_EQ(numbers_of(table->take("p", {0, 1, 2})),
            (std::vector<std::int64_t>{0, 0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
  EXPECT_EQ(numbers_of(table->take("target", {0, 1, 2})),
            (std::vector<std::int64_t>{-100, 2, 9, -100, -100, 4, 5, 6, 9, -100, 8, -100, -100, -100, -100}));
  const at::Tensor mask = table->take("m", {1, 0}), additive = table->take("h", {1, 0});
  EXPECT_EQ(mask.sizes().vec(), (std::vector<std::int64_t>{2, 5, 5}));
  EXPECT_EQ(mask.sizes().vec(), std::vector<std::int64_t>({2, 5, 5}));
  EXPECT_EQ(additive.sizes().vec(), (std::vector<std::int64_t>{2, 1, 5, 5}));
  EXPECT_EQ(additive.scalar_type(), at::kHalf);
  EXPECT_EQ(table->columns().at("h").shape, (std::vector<std::int64_t>{3, 1, 5, 5}));
  EXPECT_EQ(numbers_of(mask[1]), (std::vector<std::int64_t>{1, 0, 0, 0, 0,  //
                                                            0, 1, 0, 0, 0,  //
                                                            0, 1, 1, 0, 0,  //
                                                            0, 1, 1, 1, 0,  //
                                                            0, 0, 0, 0, 1}));
  EXPECT_TRUE(torch::equal(mask[0], torch::ones({5, 5}, torch::kBool).tril()));
  EXPECT_TRUE(torch::equal(additive.squeeze(1).eq(0), mask));
  EXPECT_TRUE(torch::equal(additive.squeeze(1).isneginf(), mask.logical_not()));
}

TEST(TrainDocuments, TableHasLabelsAndPadding) {
  // Two rows of 5 and a padded one; 9 ends a document.
  const auto stream = token_memory({9, 1, 2, 9, 9, 3, 4, 5, 6, 9, 7, 8});
  using Numbers = std::vector<std::int64_t>;
  DocumentOptions documents{.tensors = {{"p", {DocumentTensor::Positions}},
                                        {"m", {DocumentTensor::Mask}},
                                        {"k", {DocumentTensor::Padding, at::kLong}}}};
  const auto table_with = [&](bool next) {
    return sequence_table(
        stream, {.length = 5, .input = "x", .documents = documents, .labels = LabelInput{"y", next}});
  };
  // Labels for the next position are the tokens; the last row has the last token, too.
  auto table = table_with(true);
  EXPECT_EQ(numbers_of(table->take("x", {2})), (Numbers{7, 8, 0, 0, 0}));
  EXPECT_EQ(numbers_of(table->take("y", {2, 0})), (Numbers{7, 8, -100, -100, -100, 9, 1, 2, 9, 9}));
  EXPECT_EQ(numbers_of(table->take("k", {0, 2})), (Numbers{1, 1, 1, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(table->columns().at("k").dtype, at::kLong);
  // Without a separator, each row is one document.
  EXPECT_EQ(numbers_of(table->take("p", {0, 2})), (Numbers{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
  EXPECT_TRUE(torch::equal(table->take("m", {1})[0], torch::ones({5, 5}, torch::kBool).tril()));
  // Labels of the same position are the targets.
  table = table_with(false);
  EXPECT_EQ(numbers_of(table->take("y", {1, 2})), (Numbers{4, 5, 6, 9, 7, 8, -100, -100, -100, -100}));
  EXPECT_EQ(numbers_of(table->take("x", {2})), (Numbers{7, 0, 0, 0, 0}));
  EXPECT_EQ(numbers_of(table->take("k", {2})), (Numbers{1, 0, 0, 0, 0}));
  // What follows a separator is no target.
  documents.separator = 9;
  documents.boundary_targets = false;
  EXPECT_EQ(numbers_of(table_with(true)->take("y", {0, 1})), (Numbers{9, -100, 2, 9, -100, 3, 4, 5, 6, 9}));
  EXPECT_EQ(numbers_of(table_with(false)->take("y", {0})), (Numbers{-100, 2, 9, -100, -100}));
}

// A token that follows a separator does not depend on what is before it.
TEST(TrainDocuments, SamplesRestartAfterSeparator) {
  models::Gpt model(small(models::PositionKind::Learned));
  models::initialize(*model, model->options(), 3);
  models::SampleOptions options{.tokens = 30, .temperature = 0, .separator = kSeparator};
  const auto alone = models::sample(*model, {5, 2}, options);
  auto with_others = models::sample(*model, {3, 4, 4, kSeparator, 7, kSeparator, 5, 2}, options);
  EXPECT_EQ(std::vector(with_others.begin() + 6, with_others.end()), alone);
  // Each token is the most likely one after the tokens of its document.
  options.temperature = 1.5;
  options.seed = 4;
  models::SampleOptions fresh = options;
  fresh.separator.reset();
  const auto text = models::sample(*model, {1}, options);
  ASSERT_GT(std::count(text.begin(), text.end(), kSeparator), 0) << "choose another seed";
  at::Generator generator = models::sample_generator(options);
  const torch::NoGradGuard no_grad;
  model->eval();
  std::size_t start = 0;
  for (std::size_t i = 1; i < text.size() && i - start < kLength; ++i) {
    const at::Tensor document = torch::tensor(std::vector(text.begin() + static_cast<std::ptrdiff_t>(start),
                                                          text.begin() + static_cast<std::ptrdiff_t>(i)));
    const at::Tensor logits = model->forward(document.unsqueeze(0))[0][-1];
    EXPECT_EQ(choose_token(logits, options, generator), text[i]) << i;
    if (text[i - 1] == kSeparator) start = i;
  }
}

TEST(TrainDocuments, RefusePositionsOfAnotherShape) {
  models::Gpt model(small(models::PositionKind::Rotary));
  const at::Tensor tokens = torch::ones({2, 5}, torch::kLong);
  EXPECT_ERROR(model->forward(tokens, torch::zeros({2, 4}, torch::kLong)), ShapeError,
               "one number for each of 2 x 5 tokens");
}

}  // namespace
}  // namespace penstock::train
