// Components of the trainer: optimizers compared with libtorch, data, splits, invalid options.
#include "support/error_message.h"
#include "train/loop/optimizer.h"

#include <penstock/base/error.h>
#include <penstock/train/data.h>
#include <penstock/train/model.h>
#include <penstock/train/options.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <set>
#include <string>

namespace penstock::train {
namespace {

void expect_steps_like(
    const OptimizerOptions& options,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>& make) {
  torch::manual_seed(1);
  std::vector<value::NamedTensor> mine;
  std::vector<at::Tensor> theirs;
  for (const auto& shape : {std::vector<std::int64_t>{7, 5}, {3}, {4, 33}}) {
    const auto value = torch::randn(shape);
    mine.push_back({"p" + std::to_string(mine.size()), value.clone().set_requires_grad(true)});
    theirs.push_back(value.clone().set_requires_grad(true));
  }
  Optimizer optimizer(mine, options);
  const auto expected = make(theirs);
  for (int step = 0; step < 5; ++step) {
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      if (i == 1 && step < 2) continue;  // a parameter that has no gradient at first
      const auto grad = torch::randn_like(theirs[i]);
      mine[i].tensor.mutable_grad() = grad.clone();
      theirs[i].mutable_grad() = grad.clone();
    }
    optimizer.step(0.1);
    expected->step();
    for (std::size_t i = 0; i < theirs.size(); ++i)
      EXPECT_TRUE(torch::allclose(mine[i].tensor, theirs[i], 1e-5, 1e-6))
          << "step " << step << ", parameter " << i;
  }
}

TEST(TrainOptimizer, MatchesLibtorch) {
  expect_steps_like({.kind = OptimizerKind::AdamW, .weight_decay = 0.02}, [](std::vector<at::Tensor> p) {
    return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.1).weight_decay(0.02));
  });
  expect_steps_like({.kind = OptimizerKind::Sgd, .weight_decay = 0.02}, [](std::vector<at::Tensor> p) {
    return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).weight_decay(0.02));
  });
}

TEST(TrainOptimizer, HasHyperparametersOfLibtorch) {
  using namespace torch::optim;
  expect_steps_like(
      {.kind = OptimizerKind::Adam, .weight_decay = 0.02, .beta1 = 0.8, .epsilon = 1e-4},
      [](std::vector<at::Tensor> p) {
        return std::make_unique<Adam>(p, AdamOptions(0.1).weight_decay(0.02).betas({0.8, 0.999}).eps(1e-4));
      });
  expect_steps_like({.kind = OptimizerKind::AdamW, .amsgrad = true}, [](std::vector<at::Tensor> p) {
    return std::make_unique<AdamW>(p, AdamWOptions(0.1).weight_decay(0).amsgrad(true));
  });
  expect_steps_like({.kind = OptimizerKind::Sgd, .weight_decay = 0.02, .momentum = 0.7, .dampening = 0.4},
                    [](std::vector<at::Tensor> p) {
                      return std::make_unique<SGD>(
                          p, SGDOptions(0.1).weight_decay(0.02).momentum(0.7).dampening(0.4));
                    });
  expect_steps_like({.kind = OptimizerKind::Sgd, .momentum = 0.7, .nesterov = true},
                    [](std::vector<at::Tensor> p) {
                      return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.7).nesterov(true));
                    });
  expect_steps_like(
      {.kind = OptimizerKind::Adagrad, .weight_decay = 0.02, .rate_decay = 0.3, .initial_accumulator = 0.2},
      [](std::vector<at::Tensor> p) {
        return std::make_unique<Adagrad>(
            p, AdagradOptions(0.1).weight_decay(0.02).lr_decay(0.3).initial_accumulator_value(0.2));
      });
  expect_steps_like(
      {.kind = OptimizerKind::RmsProp, .weight_decay = 0.02, .momentum = 0.6, .alpha = 0.8, .centered = true},
      [](std::vector<at::Tensor> p) {
        return std::make_unique<RMSprop>(
            p, RMSpropOptions(0.1).weight_decay(0.02).momentum(0.6).alpha(0.8).centered(true));
      });
}

TEST(TrainOptimizer, RejectsHyperparametersOfOthers) {
  const auto rejects = [](const OptimizerOptions& optimizer, const std::string& name) {
    RunOptions options;
    options.optimizer = optimizer;
    EXPECT_ERROR(check(options), UsageError, "optimizer." + name);
  };
  using enum OptimizerKind;
  rejects({.kind = AdamW, .momentum = 0.1}, "momentum does not apply to adamw");
  rejects({.kind = Adam, .dampening = 0.1}, "dampening does not apply to adam");
  rejects({.kind = RmsProp, .nesterov = true}, "nesterov does not apply to rmsprop");
  rejects({.kind = Sgd, .beta1 = 0.1}, "beta1 does not apply to sgd");
  rejects({.kind = Adagrad, .beta2 = 0.1}, "beta2 does not apply to adagrad");
  rejects({.kind = Sgd, .epsilon = 0.1}, "epsilon does not apply to sgd");
  rejects({.kind = Sgd, .amsgrad = true}, "amsgrad does not apply to sgd");
  rejects({.kind = Sgd, .rate_decay = 0.1}, "rate_decay does not apply to sgd");
  rejects({.kind = AdamW, .initial_accumulator = 0.1}, "initial_accumulator does not apply to adamw");
  rejects({.kind = Adagrad, .alpha = 0.1}, "alpha does not apply to adagrad");
  rejects({.kind = Adagrad, .centered = true}, "centered does not apply to adagrad");
  rejects({.kind = Sgd, .nesterov = true}, "nesterov needs a momentum");
}

TEST(TrainOptimizer, KeepsMomentum) {
  const auto value = torch::ones({3});
  Optimizer optimizer({{"p", value.clone().set_requires_grad(true)}},
                      {.kind = OptimizerKind::Sgd, .momentum = 0.5});
  at::Tensor p = optimizer.parameters()[0].tensor;
  for (int i = 0; i < 3; ++i) {
    p.mutable_grad() = torch::ones({3});
    optimizer.step(1);
  }
  EXPECT_TRUE(torch::allclose(p, value - 1 - 1.5 - 1.75));
}

TEST(TrainTextData, GeneratedTextDoesNotDependOnCompiler) {
  EXPECT_THAT(generated_text(80, 0), testing::StartsWith("The sailors fear the gardens.\n"
                                                         "The young kings keep a garden, while the broken "
                                                         "windows find.\n"));
}

// Each epoch serves the sequences of the text that validation does not hold out once.
TEST(TrainTextData, EpochsServeEachSequenceOnceWithItsNextCharacters) {
  std::string text;  // without equal sequences
  for (int i = 0; i < 400; ++i) text += std::to_string(i) + " ";
  constexpr std::size_t length = 9, all = 150, kept = 30, steps = 20;
  text.resize(all * length + 1);
  const Vocabulary vocabulary(text);
  EXPECT_EQ(vocabulary.decode(vocabulary.encode(text)), text);
  const auto data = text_data(text, vocabulary, {.length = length, .validation_fraction = 0.2, .seed = 3});
  ASSERT_EQ(data->validation_rows(), kept);
  ASSERT_EQ(data->steps_of(1, 6), steps);
  const auto text_of = [&](const c10::IValue& rows, std::int64_t row) {
    const at::Tensor tokens = rows.toTensor()[row].contiguous();
    const auto* const first = tokens.const_data_ptr<std::int64_t>();
    return vocabulary.decode({first, first + tokens.numel()});
  };
  // The index of the sequence in the text.
  const auto index_of = [&](const Batch& batch, std::int64_t row) {
    const std::size_t begin = text.find(text_of(batch.args[0], row) + text_of(batch.target, row).back());
    EXPECT_EQ(begin % length, 0U);
    EXPECT_EQ(text.substr(begin + 1, length), text_of(batch.target, row));
    return begin / length;
  };
  std::set<std::size_t> held;
  const Batch rows = data->validation({0, kept});
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(kept); ++row) held.insert(index_of(rows, row));
  EXPECT_EQ(held.size(), kept);
  EXPECT_LT(*held.begin(), all - kept);  // random, not the end of the text
  for (const std::int64_t epoch : {0, 1}) {
    std::set<std::size_t> seen = held;
    for (std::int64_t step = 20 * epoch + 1; step <= 20 * (epoch + 1); ++step) {
      const Batch batch = data->training(step, 6, {0, 6});
      for (std::int64_t row = 0; row < 6; ++row) seen.insert(index_of(batch, row));
      // Rows depend on the step, not on which of them are requested.
      const Batch part = data->training(step, 6, {2, 4});
      EXPECT_TRUE(torch::equal(part.args[0].toTensor(), batch.args[0].toTensor().narrow(0, 2, 2)));
    }
    EXPECT_EQ(seen.size(), all);
  }
  EXPECT_FALSE(torch::equal(data->training(1, 6, {0, 6}).args[0].toTensor(),
                            data->training(21, 6, {0, 6}).args[0].toTensor()));
  EXPECT_ERROR(text_data("too short", Vocabulary("too short"), {.length = 20}), UsageError,
               "a text of 9 characters is too short for sequences of 20");
}

TEST(TrainTensorData, ReadsExamplesInOrderAndWraps) {
  const auto x = torch::arange(10).view({5, 2}).to(torch::kFloat), mask = torch::arange(5),
             y = torch::arange(5) * 10;
  const auto data =
      tensor_data({{"x", x}, {"mask", mask}, {"target", y}}, {.positional = {"x"}, .keywords = {"mask"}});
  const Batch batch = data->training(3, 4, {1, 4});  // rows 9, 10, 11 of 5
  EXPECT_TRUE(torch::equal(batch.target.toTensor(), torch::tensor({40, 0, 10})));
  EXPECT_TRUE(torch::equal(batch.kwargs.at("mask").toTensor(), torch::tensor({4, 0, 1})));
  EXPECT_TRUE(torch::equal(batch.args[0].toTensor()[0], x[4]));
  EXPECT_EQ(data->validation_rows(), 0);
  EXPECT_TRUE(torch::equal(data->training_target(3, 4).toTensor(), torch::tensor({30, 40, 0, 10})));
  const auto kept = tensor_data({{"x", x}, {"mask", mask}, {"target", y}},
                                {.positional = {"x"}, .keywords = {"mask"}, .validation_fraction = 0.5});
  EXPECT_EQ(kept->validation_rows(), 2);
  EXPECT_TRUE(torch::equal(kept->validation({0, 2}).target.toTensor(), torch::tensor({30, 40})));
  try {
    tensor_data({{"x", x}, {"target", y}}, {.positional = {"tokens"}});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("no tensor 'tokens'; it has target, x"));
  }
  EXPECT_ERROR(tensor_data({{"x", x}, {"target", y.narrow(0, 0, 3)}}, {.positional = {"x"}}), ShapeError,
               "'target' has 3 examples, 'x' has 5");
}

TEST(TrainModelSplit, RoundTripsAndRejectsInvalidText) {
  for (const ModelSplit& split : {ModelSplit{}, ModelSplit{{7}}, ModelSplit{{1, 12, 40}}})
    EXPECT_EQ(parse_model_split(to_string(split)), split);
  EXPECT_EQ(to_string(ModelSplit{{1, 12, 40}}), "1 12 40");
  EXPECT_EQ((ModelSplit{{1, 12, 40}}.num_stages()), 4);
  for (const char* text : {"x", "3 3", "4 3", "0", "-1", "3 ", " 3", "3  4", "3,4"})
    EXPECT_ERROR(parse_model_split(text), ParseError, "is not a list of ascending split positions") << text;
}

TEST(TrainModelSplit, GptStagesMatchDescription) {
  const auto model = gpt_model({.vocabulary = 11, .context = 8, .layers = 4, .heads = 2, .width = 16}, 1);
  EXPECT_EQ(model->split(1), ModelSplit{});
  EXPECT_EQ(model->split(6), (ModelSplit{{1, 2, 3, 4, 5}}));
  EXPECT_ERROR(model->split(7), UsageError, "stages, not 7");
  const auto parts = model->split_at({{2, 5}});  // embedding and block 0; blocks 1 to 3; the head
  const auto has = [&](int stage, const std::string& name) {
    const auto parameters = parts->stage(StageId(stage))->parameters();
    return std::any_of(parameters.begin(), parameters.end(),
                       [&](const auto& item) { return item.name.starts_with(name); });
  };
  EXPECT_TRUE(has(0, "token.") && has(0, "blocks.0.") && !has(0, "blocks.1."));
  EXPECT_TRUE(has(1, "blocks.1.") && has(1, "blocks.3.") && !has(1, "token."));
  EXPECT_TRUE(has(2, "token.") && !has(2, "blocks."));
  EXPECT_EQ(parts->shared().size(), 1U);
  for (const ModelSplit& wrong : {ModelSplit{{6}}, ModelSplit{{2, 2}}})
    EXPECT_ERROR(model->split_at(wrong), UsageError, "is not a valid split of the GPT");
}

TEST(TrainModelSplit, GptIsSplitAtGivenPoints) {
  const auto split = [](const pipe::SplitPoints& points, int stages) {
    return gpt_model({.vocabulary = 11, .context = 8, .layers = 4, .heads = 2, .width = 16}, 1, {}, {},
                     points)
        ->split(stages);
  };
  using enum graph::SplitPoint;
  EXPECT_EQ(split({{"blocks.1", Beginning}, {"blocks.3", End}}, 3), (ModelSplit{{2, 5}}));
  EXPECT_EQ(split({{"token", End}, {"norm", Beginning}}, 3), (ModelSplit{{1, 5}}));
  EXPECT_EQ(split({{"blocks.0", End}, {"blocks.1", Beginning}}, 2), (ModelSplit{{2}}));
  EXPECT_ERROR(split({{"blocks.1", Beginning}}, 4), UsageError,
               "the split points make 2 stages, but the schedule needs 4");
  EXPECT_ERROR(split({{"blocks.4", Beginning}}, 2), UsageError,
               "a GPT of 4 layers cannot be split at the beginning of 'blocks.4'");
  EXPECT_ERROR(split({{"norm", End}}, 2), UsageError, "cannot be split at the end of 'norm'");
  EXPECT_ERROR(split({{"token", Beginning}}, 2), UsageError, "cannot be split at the beginning of 'token'");
}

TEST(TrainRunOptions, RejectInvalidCombinations) {
  RunOptions options;
  options.batch = 6;
  options.parallel.dp = 4;
  EXPECT_ERROR(check(options), UsageError, "a batch of 6 cannot be split evenly over 4 replicas");
  options.parallel.dp = 2;
  EXPECT_ERROR(check(options), UsageError,
               "a batch of 3 examples per replica and part is too small for 4 microbatches");
  options.parallel.microbatches = 3;
  check(options);
  options.steps = 0;
  EXPECT_ERROR(check(options), UsageError, "steps must be");
}

TEST(TrainRunOptions, RejectInvalidHyperparameters) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto rejects = [](auto&& change, const std::string& name) {
    RunOptions options;
    change(options);
    EXPECT_THAT([&] { check(options); },
                testing::ThrowsMessage<UsageError>(testing::StartsWith(name + " must be")));
  };
  for (const double beta : {-0.1, 1.0, nan}) {
    rejects([&](RunOptions& o) { o.optimizer.beta1 = beta; }, "optimizer.beta1");
    rejects([&](RunOptions& o) { o.optimizer.beta2 = beta; }, "optimizer.beta2");
  }
  for (const double negative : {-1e-9, nan}) {
    rejects([&](RunOptions& o) { o.optimizer.epsilon = negative; }, "optimizer.epsilon");
    rejects([&](RunOptions& o) { o.optimizer.weight_decay = negative; }, "optimizer.weight_decay");
    rejects([&](RunOptions& o) { o.optimizer.momentum = negative; }, "optimizer.momentum");
    rejects([&](RunOptions& o) { o.optimizer.alpha = negative; }, "optimizer.alpha");
    rejects([&](RunOptions& o) { o.learning_rate.peak = negative; }, "learning_rate.peak");
    rejects([&](RunOptions& o) { o.learning_rate.final_fraction = negative; },
            "learning_rate.final_fraction");
  }
  rejects([](RunOptions& o) { o.learning_rate.final_fraction = 1.1; }, "learning_rate.final_fraction");
  RunOptions limits;
  limits.learning_rate.kind = LearningRateKind::Cosine;
  limits.learning_rate.final_fraction = 1;
  limits.optimizer.beta1 = limits.optimizer.beta2 = 0;
  limits.optimizer.epsilon = 0;
  check(limits);
}

}  // namespace
}  // namespace penstock::train
