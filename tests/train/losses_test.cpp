// Losses of full batches: ignored labels, short batches and validation rows, in every topology, compared with
// a dense computation of the formula.
#include "support/error_message.h"
#include "support/program.h"
#include "train/archive_losses.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/train/trainer.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <limits>
#include <memory>

namespace penstock::train {
namespace {

using schedule::ScheduleKind;

using testing::AllOf;
using testing::HasSubstr;
// The mean of the negative log-likelihoods of the valid labels; 0 if there are none.
at::Tensor mean_over_valid(const at::Tensor& logits, const at::Tensor& target) {
  const at::Tensor labels = target.flatten(), valid = labels.ne(kIgnored);
  const at::Tensor each = -at::log_softmax(logits.flatten(0, -2), 1)
                               .gather(1, at::where(valid, labels, at::zeros_like(labels)).unsqueeze(1))
                               .squeeze(1);
  return (each * valid).sum() / std::max<std::int64_t>(valid.sum().item<std::int64_t>(), 1);
}

// The unsplit model.
class Dense {
 public:
  explicit Dense(const std::string& model)
      : pipe_(pipe::load_pt2(archive(model + ".pt2"),
                             pipe::SplitPolicy([](const graph::Graph&) { return graph::SplitPositions{}; }))),
        module_(pipe_.make_stage_module(StageId(0))),
        language_(model != "mlp") {}

  at::Tensor loss(const Tensors& data, const at::Tensor& rows) const {
    const auto of = [&](const char* name) { return data.at(name).index_select(0, rows); };
    if (!language_)
      return (module_->forward({of("input")}, {}).output.toTensor() - of("target")).square().mean();
    const runtime::StageResult result = module_->forward({of("tokens")}, {{"weight", of("weight")}});
    return mean_over_valid(result.output.toGenericDict().at("logits").toTensor(), of("target"));
  }

  struct Curve {
    std::vector<double> losses, norms;
  };
  // SGD over batches in order.
  Curve train(const Tensors& data, std::int64_t count, std::int64_t batch, std::int64_t steps, double rate) {
    std::vector<at::Tensor> batches;
    for (std::int64_t step = 0; step < steps; ++step)
      batches.push_back(at::arange(step * batch, (step + 1) * batch).remainder(count));
    return train(data, batches, rate);
  }
  // SGD over batches of these rows.
  Curve train(const Tensors& data, const std::vector<at::Tensor>& batches, double rate) {
    Curve curve;
    for (const at::Tensor& rows : batches) {
      const at::Tensor value = loss(data, rows);
      value.backward();
      double squares = 0;
      const at::NoGradGuard no_grad;
      for (const value::NamedTensor& item : module_->parameters()) {
        at::Tensor parameter = item.tensor;
        squares += parameter.grad().square().sum().item<double>();
        parameter.sub_(parameter.grad(), rate);
        parameter.mutable_grad() = at::Tensor();
      }
      curve.losses.push_back(value.item<double>());
      curve.norms.push_back(std::sqrt(squares));
    }
    return curve;
  }

 private:
  pipe::Pipe pipe_;
  std::shared_ptr<runtime::StageModule> module_;
  bool language_;
};

struct Topology {
  ParallelOptions parallel;
  std::int64_t accumulate = 1;
};

std::string text_of(const Topology& t) {
  const ParallelOptions& p = t.parallel;
  return "pp " + std::to_string(p.pp) + " tp " + std::to_string(p.tp) + " dp " + std::to_string(p.dp) +
         " sharding " + std::string(to_string(p.sharding)) + " " + to_string(p.schedule) + " M " +
         std::to_string(p.microbatches) + " A " + std::to_string(t.accumulate);
}

// For a batch of 20 rows. Replicas and accumulation divide it further, so that some passes have few rows.
const std::vector<Topology>& topologies() {
  static const std::vector<Topology> all = {
      {{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1}},
      {{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 3}},
      {{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 6}},
      {{.pp = 2, .schedule = ScheduleKind::ZBVZeroBubble, .microbatches = 4}, 2},
      {{.pp = 3, .schedule = ScheduleKind::ZB1P, .microbatches = 3}},
      {{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 2}, 5},
      {{.pp = 1, .dp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 3}},
      {{.pp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2}, 2},
      {{.pp = 2, .dp = 2, .sharding = Sharding::Full, .schedule = ScheduleKind::ZB1P, .microbatches = 2}, 2},
      {{.pp = 1, .tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 3}, 2},
      {{.pp = 2, .tp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2}, 2},
      {{.pp = 1,
        .tp = 2,
        .dp = 2,
        .sharding = Sharding::Gradients,
        .schedule = ScheduleKind::GPipe,
        .microbatches = 3}},
      {{.pp = 2,
        .dp = 2,
        .sharding = Sharding::Optimizer,
        .schedule = ScheduleKind::ZBVZeroBubble,
        .microbatches = 4}}};
  return all;
}

TEST(TrainIgnoredLabels, LossesAndGradientsMatchFullBatchInEveryTopology) {
  at::set_num_threads(1);
  for (const auto& [seed, share] : {std::pair{1U, 0.1}, {2U, 0.5}, {3U, 0.9}}) {
    const Tensors data = with_ignored(seed, share);
    const auto expected = Dense("language").train(data, 20, 20, 3, 0.5);
    for (const Topology& topology : topologies()) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + text_of(topology));
      RecordingObserver recorder;
      run_archive("language", data, sgd(topology.parallel, 20, topology.accumulate), &recorder);
      ASSERT_EQ(recorder.records.size(), 3U);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(recorder.records[i].loss, expected.losses[i], 1e-5);
        EXPECT_NEAR(recorder.records[i].grad_norm, expected.norms[i], 1e-5);
      }
    }
  }
}

// The built-in model computes its loss on logits that stay sharded over tensor-parallel ranks.
class MaskedText : public DataSource {
 public:
  Batch training(std::int64_t step, std::int64_t batch, Rows rows) const override {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step));
    const at::Tensor tokens = at::randint(11, {batch, 8}, generator, at::kLong);
    at::Tensor target = tokens.roll(1, 1).masked_fill(at::rand({batch, 8}, generator).lt(0.4), kIgnored);
    target.narrow(0, 2, 3).fill_(kIgnored);
    const std::int64_t count = rows.end - rows.begin;
    return {
        {tokens.narrow(0, rows.begin, count)}, {}, target.narrow(0, rows.begin, count), {}, count, 8 * count};
  }
  std::int64_t validation_rows() const override { return 0; }
  Batch validation(Rows) const override { return {}; }
};

TEST(TrainIgnoredLabels, WorkWithBuiltInModel) {
  at::set_num_threads(1);
  const auto losses = [](double smoothing, const ParallelOptions& parallel, std::int64_t accumulate) {
    RunResult result;
    comm::run_thread_ranks(parallel.ranks(), [&](comm::World& world) {
      const auto model = gpt_model({.vocabulary = 11, .context = 8, .layers = 2, .heads = 2, .width = 16}, 1,
                                   {}, {.label_smoothing = smoothing});
      RunResult mine = run(world, *model, MaskedText(), sgd(parallel, 8, accumulate));
      if (world.rank().value == 0) result = std::move(mine);
    });
    return result.losses;
  };
  std::vector<double> first;
  // One rank uses the cross entropy of libtorch.
  for (const double smoothing : {0.0, 0.3}) {
    const auto full_batch =
        losses(smoothing, {.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1}, 1);
    first.push_back(full_batch[0]);
    for (const auto& topology :
         {Topology{{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 8}},
          Topology{{.pp = 1, .tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 8}},
          Topology{{.pp = 2, .tp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2}, 2}}) {
      const auto parts = losses(smoothing, topology.parallel, topology.accumulate);
      for (std::size_t i = 0; i < full_batch.size(); ++i)
        EXPECT_NEAR(parts[i], full_batch[i], 1e-5) << text_of(topology) << ", smoothing " << smoothing;
    }
  }
  EXPECT_GT(std::abs(first[0] - first[1]), 1e-3);
}

TEST(TrainIgnoredLabels, BatchWithoutValidLabelsChangesNothingAndIsReported) {
  at::set_num_threads(1);
  Tensors data = with_ignored(2, 0.5);
  data.at("target").narrow(0, 4, 4).fill_(kIgnored);  // the rows of step 2: each batch has 4
  const auto expected = Dense("language").train(data, 20, 4, 3, 0.5);
  EXPECT_EQ(expected.norms[1], 0);
  for (const Topology& topology :
       {Topology{{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 2}},
        Topology{{.pp = 2, .dp = 2, .schedule = ScheduleKind::ZB1P, .microbatches = 1}},
        Topology{{.pp = 1,
        .dp = 2,
        .sharding = Sharding::Full,
        .schedule = ScheduleKind::GPipe,
        .microbatches = 1}}}) {
    SCOPED_TRACE(text_of(topology));
    RecordingObserver recorder;
    run_archive("language", data, sgd(topology.parallel, 4), &recorder);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(recorder.records.at(i).loss, expected.losses[i], 1e-5);
      EXPECT_NEAR(recorder.records[i].grad_norm, expected.norms[i], 1e-5);
    }
    EXPECT_EQ(recorder.records[1].loss, 0);
    EXPECT_THAT(recorder.notes, testing::Contains(HasSubstr("step 2: no label of the batch counts")));
  }
}

// 20 rows in batches of 12 and 8, or of 8, 8 and 4: the padding of the last batch has no effect.
TEST(TrainEpochs, ShortLastBatchMatchesDenseRunInEveryTopology) {
  at::set_num_threads(1);
  const Tensors language = with_ignored(2, 0.3),
                mlp = checkpoint::load_safetensors(archive("mlp.safetensors"));
  for (const std::string model : {"language", "mlp"}) {
    const Tensors& tensors = model == "mlp" ? mlp : language;
    for (const std::int64_t batch : {12, 8}) {
      const Epochs epochs(20, {.shuffle = true, .seed = 5});
      std::vector<at::Tensor> rows;
      for (std::int64_t step = 1; step <= 5; ++step)
        rows.push_back(at::tensor(epochs.examples_of(step, batch, 0, epochs.rows(step, batch)), at::kLong));
      EXPECT_LT(rows[batch == 12 ? 1 : 2].size(0), batch);
      const Dense::Curve expected = Dense(model).train(tensors, rows, 0.05);
      for (const Topology& topology :
           {Topology{{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1}},
            Topology{{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 4}},
            Topology{{.pp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 1}, 2},
            Topology{{.pp = 2, .dp = 2, .schedule = ScheduleKind::ZB1P, .microbatches = 2}},
            Topology{{.pp = 1, .tp = 2, .dp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 2}},
            Topology{{.pp = 2,
            .dp = 2,
            .sharding = Sharding::Full,
            .schedule = ScheduleKind::OneFOneB,
            .microbatches = 2}}}) {
        if (model == "mlp" && topology.parallel.tp > 1) continue;
        SCOPED_TRACE(model + ", batch " + std::to_string(batch) + ", " + text_of(topology));
        RunOptions options = sgd(topology.parallel, batch, topology.accumulate);
        options.steps = 5;
        options.learning_rate.peak = 0.05;
        RecordingObserver recorder;
        run_archive(model, tensors, options, &recorder, 0, {.shuffle = true, .seed = 5});
        ASSERT_EQ(recorder.records.size(), 5U);
        for (std::size_t i = 0; i < 5; ++i) {
          EXPECT_NEAR(recorder.records[i].loss, expected.losses[i], 1e-5) << "step " << i + 1;
          EXPECT_NEAR(recorder.records[i].grad_norm, expected.norms[i], 1e-5) << "step " << i + 1;
        }
      }
    }
  }
}

// Three runs continue each other in other topologies and with other batches. The dense run reads the orders
// of the epochs one after the other: 8, 12, 4 and 4 rows of epoch 1 and 2, and so on.
TEST(TrainEpochs, ResumedRunsWithOtherBatchesReadEachRowOnce) {
  at::set_num_threads(1);
  for (const std::string model : {"language", "mlp"}) {
    SCOPED_TRACE(model);
    const Tensors tensors = checkpoint::load_safetensors(archive(model + ".safetensors"));
    std::vector<std::int64_t> order;
    for (const std::uint64_t epoch : {1U, 2U, 3U})
      for (std::int64_t row = 0; row < 20; ++row) order.push_back(Permutation(20, 5, epoch)[row]);
    std::vector<at::Tensor> rows;
    std::int64_t first = 0;
    for (const std::int64_t count : {8, 12, 4, 4, 4, 6, 2, 6, 6}) {
      rows.push_back(at::tensor(
          std::vector<std::int64_t>(order.begin() + first, order.begin() + first + count), at::kLong));
      first += count;
    }
    const Dense::Curve expected = Dense(model).train(tensors, rows, 0.05);
    const test::TempDir dir;
    struct Part {
      Topology topology;
      std::int64_t batch, steps;
    };
    RecordingObserver recorder;
    for (const Part& part :
         {Part{{{.pp = 1, .dp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 2}}, 8, 1},
          Part{{{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 3}}, 12, 2},
          Part{{{.pp = 2,
          .dp = 2,
          .sharding = Sharding::Full,
          .schedule = ScheduleKind::OneFOneB,
          .microbatches = 1}},
               4,
               5},
          Part{{{.pp = 3, .schedule = ScheduleKind::ZB1P, .microbatches = 2}}, 6, 9}}) {
      RunOptions options = sgd(part.topology.parallel, part.batch);
      options.steps = part.steps;
      options.learning_rate.peak = 0.05;
      options.checkpoint.directory = dir / "saved";
      options.checkpoint.resume = part.steps > 1;
      run_archive(model, tensors, options, &recorder, 0, {.shuffle = true, .seed = 5});
    }
    ASSERT_EQ(recorder.records.size(), rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_NEAR(recorder.records[i].loss, expected.losses[i], 1e-5) << "step " << i + 1;
      EXPECT_NEAR(recorder.records[i].grad_norm, expected.norms[i], 1e-5) << "step " << i + 1;
    }
  }
}

// 20 rows in batches of 8, 8 and 4, or of 12 and 8.
TEST(TrainEpochs, TokensPerSecondLeaveOutPaddingRows) {
  at::set_num_threads(1);
  const Tensors tensors = checkpoint::load_safetensors(archive("mlp.safetensors"));
  for (const std::int64_t batch : {8, 12}) {
    for (const Topology& topology :
         {Topology{{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1}},
          Topology{{.pp = 1, .dp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 1}},
          Topology{{.pp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 1}, 2}}) {
      SCOPED_TRACE("batch " + std::to_string(batch) + ", " + text_of(topology));
      RecordingObserver recorder;
      comm::run_thread_ranks(topology.parallel.ranks(), [&](comm::World& world) {
        const ArchiveModel loaded = archive_model({.file = archive("mlp.pt2"), .loss = LossKind::Mse});
        const auto data = tensor_data(
            tensors, {.positional = loaded.positional, .order = {.shuffle = true}, .tokens_per_row = 16});
        run(world, *loaded.model, *data, sgd(topology.parallel, batch, topology.accumulate),
            {.observer = &recorder});
      });
      const std::vector<std::int64_t> rows =
          batch == 8 ? std::vector<std::int64_t>{8, 8, 4} : std::vector<std::int64_t>{12, 8, 12};
      ASSERT_EQ(recorder.records.size(), rows.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const StepRecord& record = recorder.records[i];
        EXPECT_NEAR(record.tokens_per_second.value() * record.seconds, static_cast<double>(rows[i] * 16),
                    1e-6);
      }
    }
  }
}

// A model whose loss includes every row of a microbatch.
class FullBatchModel : public Model {
 public:
  explicit FullBatchModel(const Model& model) : model_(model) {}

  std::string summary() const override { return model_.summary(); }
  ModelSplit split(int stages) const override { return model_.split(stages); }
  std::unique_ptr<StagedModel> split_at(const ModelSplit& split) const override {
    return model_.split_at(split);
  }
  runtime::LossFunction loss() const override { return model_.loss(); }
  bool needs_full_batches() const override { return true; }

 private:
  const Model& model_;
};

// Ranks enter a step together, so that none is in a collective of the previous step when another one throws.
class StepsTogether : public RankHook {
 public:
  explicit StepsTogether(std::barrier<>& barrier) : barrier_(barrier) {}
  void on_phase(RunPhase phase, const RankState&) override {
    if (phase == RunPhase::Step) barrier_.arrive_and_wait();
  }

 private:
  std::barrier<>& barrier_;
};

// The batch of step 3 has 4 of 8 rows, all of which belong to the first replica.
TEST(TrainEpochs, EveryRankRefusesShortBatchIfLossNeedsFullOnes) {
  at::set_num_threads(1);
  const Tensors tensors = checkpoint::load_safetensors(archive("mlp.safetensors"));
  std::barrier<> barrier(2);
  std::atomic<int> refused = 0;
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const ArchiveModel loaded = archive_model({.file = archive("mlp.pt2"), .loss = LossKind::Mse});
    const auto data = tensor_data(tensors, {.positional = loaded.positional, .order = {.shuffle = true}});
    StepsTogether hook(barrier);
    try {
      run(world, FullBatchModel(*loaded.model), *data,
          sgd({.pp = 1, .dp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 1}, 8), {.hook = &hook});
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("has only 4 of 8 rows"));
      ++refused;
    } catch (const Error&) {
      // A rank that entered the step: another one has failed.
    }
  });
  EXPECT_EQ(refused, 2);
}

// 20 rows, some of which are held out; batches that they fill, fill partially, or do not fill once.
TEST(TrainValidation, IsExactForAnyBatchSizeAndTopology) {
  at::set_num_threads(1);
  const Tensors language = with_ignored(4, 0.3),
                mlp = checkpoint::load_safetensors(archive("mlp.safetensors"));
  for (const auto& [kept, batch] : {std::pair{7, 4}, {7, 8}, {5, 12}, {8, 8}, {2, 8}}) {
    for (const std::string model : {"language", "fixed", "mlp"}) {
      const Tensors& data = model == "mlp" ? mlp : language;
      for (const Topology& topology :
           {Topology{{.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1}},
            Topology{{.pp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2}},
            Topology{{.pp = 1, .dp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 1}},
            Topology{{.pp = 2, .dp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 1}, 2},
            Topology{{.pp = 1, .tp = 2, .schedule = ScheduleKind::GPipe, .microbatches = 1}},
            Topology{{.pp = 2, .tp = 2, .schedule = ScheduleKind::OneFOneB, .microbatches = 2}},
            Topology{{.pp = 1,
            .dp = 2,
            .sharding = Sharding::Full,
            .schedule = ScheduleKind::GPipe,
            .microbatches = 1}},
            Topology{{.pp = 2,
            .tp = 2,
            .dp = 2,
            .sharding = Sharding::Full,
            .schedule = ScheduleKind::OneFOneB,
            .microbatches = 1}},
            Topology{{.pp = 1,
            .dp = 2,
            .sharding = Sharding::Gradients,
            .schedule = ScheduleKind::GPipe,
            .microbatches = 1}},
            Topology{{.pp = 2,
            .dp = 2,
            .sharding = Sharding::Optimizer,
            .schedule = ScheduleKind::OneFOneB,
            .microbatches = 1}}}) {
        const std::int64_t rows = batch / topology.parallel.dp / topology.accumulate;
        const bool fits = model == "fixed" ? rows == 4 * topology.parallel.microbatches
                                           : rows >= 2 * topology.parallel.microbatches;
        if (!fits) continue;
        SCOPED_TRACE(model + ", " + std::to_string(kept) + " rows in batches of " + std::to_string(batch) +
                     ", " + text_of(topology));
        RunOptions options = sgd(topology.parallel, batch, topology.accumulate);
        options.steps = 1;
        options.eval_every = 1;
        options.learning_rate.peak = 0;
        const RunResult result = run_archive(model, data, options, nullptr, (kept + 0.5) / 20);
        const double expected =
            Dense(model == "fixed" ? "language" : model).loss(data, at::arange(20 - kept, 20)).item<double>();
        ASSERT_TRUE(result.validation_loss);
        EXPECT_NEAR(*result.validation_loss, expected, 1e-5);
      }
    }
  }
}

TEST(TrainValidation, UsesRequestedBatchesAndReportsFullyIgnoredLabels) {
  at::set_num_threads(1);
  Tensors data = with_ignored(6, 0.3);
  RunOptions options = sgd({.pp = 1, .schedule = ScheduleKind::GPipe, .microbatches = 1}, 4);
  options.steps = 1;
  options.eval_every = 1;
  options.learning_rate.peak = 0;
  options.eval_batches = 2;
  const RunResult limited = run_archive("language", data, options, nullptr, 0.5);
  EXPECT_NEAR(limited.validation_loss.value(),
              Dense("language").loss(data, at::arange(10, 18)).item<double>(), 1e-5);
  data.at("target").narrow(0, 10, 10).fill_(kIgnored);
  RecordingObserver recorder;
  EXPECT_FALSE(run_archive("language", data, options, &recorder, 0.5).validation_loss);
  EXPECT_THAT(recorder.notes, testing::Contains(HasSubstr("there is no validation loss")));
}

}  // namespace
}  // namespace penstock::train
