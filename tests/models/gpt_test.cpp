// The built-in GPT compared with an equivalent Python model (golden.txt), and its general properties:
// causality, the cache, tied gradients, stages that compose to the full model, and initial values that depend
// only on seed and name.
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/models/gpt.h>
#include <penstock/pipe/pipe.h>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <fstream>
#include <map>

namespace penstock::models {
namespace {

GptOptions small(int variant) {
  GptOptions options{.vocabulary = 11, .context = 8, .layers = 2, .heads = 2, .width = 8};
  options.feed_forward = (variant & 1) != 0 ? FeedForwardKind::SwiGlu : FeedForwardKind::Gelu;
  options.positions = (variant & 2) != 0 ? PositionKind::Rotary : PositionKind::Learned;
  options.tied = (variant & 4) != 0;
  options.bias = (variant & 8) != 0;
  return options;
}

// The values with which make_golden.py fills the parameters.
void fill_by_name(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) {
    double phase = 0;
    for (const char c : item.key()) phase += c;
    const double middle = item.key().find("norm") != std::string::npos ? 1 : 0;
    const auto values = (torch::arange(item.value().numel(), torch::kDouble) + phase).sin() * 0.3 + middle;
    item.value().copy_(values.view_as(item.value()));
  }
}

torch::Tensor pattern(std::int64_t factor) {
  return torch::arange(12).view({2, 6}) * factor % 11;
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
}

// The numbers come from another machine and involve no randomness. Processors differ in the order of sums and
// in the last bits of exp and tanh: at most 1.1e-5 relative between kernels with and without vector
// instructions, half of the tolerance.
TEST(ModelsGpt, MatchesPythonModel) {
  std::ifstream file(PENSTOCK_SOURCE_DIR "/tests/models/golden.txt");
  std::map<int, std::map<std::string, double>> golden;
  int variant = 0;
  std::string what;
  double number = 0;
  while (file >> variant >> what >> number) golden[variant][what] = number;
  ASSERT_EQ(golden.size(), 16U);
  for (const auto& [v, expected] : golden) {
    SCOPED_TRACE(v);
    Gpt model(small(v));
    fill_by_name(*model);
    const auto logits = model->forward(pattern(7));
    const auto loss = loss_of(logits, pattern(5));
    loss.backward();
    std::map<std::string, double> found{{"loss", loss.item<double>()}};
    for (std::int64_t i = 0; i < logits.numel(); i += 13)
      found["logit." + std::to_string(i)] = logits.flatten()[i].item<double>();
    for (const auto& item : model->named_parameters())
      found[item.key()] = item.value().grad().norm().item<double>();
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, value] : expected)
      EXPECT_NEAR(found.at(name), value, 2e-5 * std::abs(value) + 2e-6) << name;
  }
}

TEST(ModelsGpt, IsCausal) {
  Gpt model(small(3));
  initialize(*model, model->options(), 1);
  auto tokens = pattern(7);
  const auto before = model->forward(tokens);
  tokens.index_put_({torch::indexing::Slice(), 4}, 0);
  const auto after = model->forward(tokens);
  EXPECT_TRUE(torch::equal(before.narrow(1, 0, 4), after.narrow(1, 0, 4)));
  EXPECT_FALSE(torch::allclose(before.narrow(1, 4, 1), after.narrow(1, 4, 1)));
}

TEST(ModelsGpt, CacheGivesSameResultForAnyChunking) {
  for (const int variant : {2, 4, 11}) {
    Gpt model(small(variant));
    fill_by_name(*model);
    const torch::NoGradGuard no_grad;
    const auto full_model = model->forward(pattern(7));
    for (const std::vector<std::int64_t>& steps :
         {std::vector<std::int64_t>{1, 1, 1, 1, 1, 1}, {3, 1, 2}, {2, 4}}) {
      KeyValueCache cache;
      std::vector<torch::Tensor> parts;
      for (const auto n : steps)
        parts.push_back(model->forward(pattern(7).narrow(1, cache.length, n), cache));
      EXPECT_TRUE(torch::allclose(torch::cat(parts, 1), full_model, 1e-5, 1e-5)) << variant;
    }
  }
}

TEST(ModelsGpt, StagesComposeToFullModel) {
  for (const int variant : {1, 6, 15}) {
    const GptOptions options = small(variant);
    Gpt full_model(options), first(options, GptPart{0, 1, true, false}),
        last(options, GptPart{1, 2, false, true});
    for (auto* module : {&full_model, &first, &last}) initialize(**module, options, 5);
    EXPECT_TRUE(torch::equal(last->forward(first->forward(pattern(7))), full_model->forward(pattern(7))));
    std::map<std::string, torch::Tensor> all;
    for (auto* module : {&first, &last})
      for (const auto& item : (*module)->named_parameters()) all[item.key()] = item.value();
    ASSERT_EQ(all.size(), full_model->named_parameters().size());
    for (const auto& item : full_model->named_parameters())
      EXPECT_TRUE(torch::equal(all.at(item.key()), item.value()));
  }
}

TEST(ModelsGpt, TiedHeadGradientIsSumOfBothUses) {
  GptOptions options = small(4);
  Gpt tied(options);
  options.tied = false;
  Gpt apart(options);
  initialize(*tied, options, 3);
  initialize(*apart, options, 3);
  {
    const torch::NoGradGuard no_grad;
    apart->head->weight.copy_(apart->token->weight);
  }
  loss_of(tied->forward(pattern(7)), pattern(5)).backward();
  loss_of(apart->forward(pattern(7)), pattern(5)).backward();
  EXPECT_TRUE(torch::allclose(tied->token->weight.grad(),
                              apart->token->weight.grad() + apart->head->weight.grad(), 1e-5, 1e-7));
}

TEST(ModelsGpt, InitialValuesDependOnSeedAndName) {
  const GptOptions options{.layers = 2, .width = 64};
  Gpt a(options), b(options), c(options);
  initialize(*a, options, 1);
  initialize(*b, options, 1);
  initialize(*c, options, 2);
  const auto other = c->named_parameters();
  for (const auto& item : a->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), b->named_parameters()[item.key()]));
    const bool constant = item.key().find("norm") != std::string::npos;
    EXPECT_EQ(torch::equal(item.value(), other[item.key()]), constant) << item.key();
  }
  EXPECT_FALSE(torch::equal(a->blocks[0]->attention->query->weight, a->blocks[1]->attention->query->weight));
  EXPECT_NEAR(a->blocks[0]->mlp->up->weight.std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(a->blocks[0]->mlp->down->weight.std().item<double>(), 0.01, 0.001);
}

TEST(ModelsGpt, IsCapturedAndSplitByGraphFrontEnd) {
  const torch::NoGradGuard no_grad;
  for (const int variant : {3, 4}) {
    Gpt model(small(variant));
    initialize(*model, model->options(), 2);
    for (const pipe::SplitSpec& spec :
         {pipe::SplitSpec(pipe::Balanced{3}),
          pipe::SplitSpec(pipe::SplitPoints{{"blocks.1", graph::SplitPoint::Beginning}})}) {
      pipe::Pipe pipe = pipeline(model, {pattern(7)}, {}, spec);
      EXPECT_GE(pipe.num_stages(), 2);
      const auto output = pipe.forward({pattern(3)}).toTensor();
      EXPECT_TRUE(torch::allclose(output, model->forward(pattern(3)), 1e-5, 1e-6));
    }
  }
}

TEST(ModelsGpt, SamplingIsReproducibleAndSlidesPastContext) {
  Gpt model(small(3));
  initialize(*model, model->options(), 2);
  const auto first = sample(*model, {1, 2}, {.tokens = 20, .temperature = 1, .seed = 4});
  EXPECT_EQ(first, sample(*model, {1, 2}, {.tokens = 20, .temperature = 1, .seed = 4}));
  EXPECT_NE(first, sample(*model, {1, 2}, {.tokens = 20, .temperature = 1, .seed = 5}));
  ASSERT_EQ(first.size(), 22U);
  for (const auto token : first) EXPECT_TRUE(token >= 0 && token < 11);
  EXPECT_TRUE(model->is_training());
  // The most likely token according to a plain forward.
  const torch::NoGradGuard no_grad;
  const auto greedy = sample(*model, {1, 2}, {.tokens = 3, .temperature = 0});
  const auto logits = model->forward(torch::tensor(greedy).unsqueeze(0).narrow(1, 0, 4));
  EXPECT_EQ(greedy[4], logits[0][-1].argmax().item<std::int64_t>());
}

TEST(ModelsGpt, RejectsInvalidSizes) {
  EXPECT_ERROR(Gpt(GptOptions{.heads = 3, .width = 8}), UsageError,
               "a width of 8 cannot be divided into 3 heads");
  EXPECT_ERROR(Gpt(GptOptions{.layers = 2}, GptPart{1, 3, false, false}), UsageError,
               "a GPT of 2 layers has no blocks 1 to 3");
  Gpt model(small(3));
  EXPECT_ERROR(model->forward(torch::zeros({1, 9}, torch::kLong)), ShapeError,
               "a sequence of 9 tokens is longer than the context");
}

}  // namespace
}  // namespace penstock::models
