// Random scopes: random numbers depend only on the key.
#include <penstock/runtime/random.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

namespace penstock::runtime {
namespace {

at::Tensor draw(const RandomKey& key) {
  const RandomScope scope(key);
  // Several kinds of operators: factory functions, in-place ones, and one that draws internally.
  return at::cat({at::rand({4}), at::empty({4}).normal_(), at::bernoulli(at::full({4}, 0.5)),
                  at::dropout(at::ones({16}), 0.5, true), at::randperm(5).to(at::kFloat),
                  at::randn_like(at::ones({3}))});
}

TEST(RuntimeRandomScope, IsReproducibleRegardlessOfOtherDraws) {
  const RandomKey key{7, 3, StageId(2), MicrobatchId(5)};
  const at::Tensor first = draw(key);
  at::rand({100});
  EXPECT_TRUE(at::equal(draw(key), first));
}

TEST(RuntimeRandomScope, DependsOnEveryPartOfKey) {
  const RandomKey key{7, 3, StageId(2), MicrobatchId(5), 1};
  RandomKey seed = key, step = key, stage = key, microbatch = key, replica = key;
  seed.seed++;
  step.step++;
  stage.stage.value++;
  microbatch.microbatch.value++;
  replica.replica++;
  for (const RandomKey& other : {seed, step, stage, microbatch, replica})
    EXPECT_FALSE(at::equal(draw(other), draw(key)));
}

TEST(RuntimeRandomScope, LeavesDefaultGeneratorUnchanged) {
  torch::manual_seed(1);
  const at::Tensor expected = at::rand({4});
  torch::manual_seed(1);
  draw({1});
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

TEST(RuntimeRandomScope, NestsAndRestores) {
  const at::Tensor inner = draw({5});
  torch::manual_seed(1);
  const at::Tensor outside = at::rand({4});
  torch::manual_seed(1);
  at::Tensor before, between, after;
  {
    const RandomScope scope({9});
    before = at::rand({4});
    EXPECT_TRUE(at::equal(draw({5}), inner));
    between = at::rand({4});
  }
  EXPECT_FALSE(at::equal(before, between));
  EXPECT_TRUE(at::equal(at::rand({4}), outside));
}

TEST(RuntimeRandomScope, RespectsExplicitGenerator) {
  const auto fresh = [] { return at::make_generator<at::CPUGeneratorImpl>(3); };
  const at::Tensor expected = at::rand({4}, fresh());
  const RandomScope scope({9});
  EXPECT_TRUE(at::equal(at::rand({4}, fresh()), expected));
}

TEST(RuntimeRandomScope, IsIndependentPerThread) {
  std::vector<at::Tensor> expected, got(4);
  for (std::uint64_t i = 0; i < 4; ++i) expected.push_back(draw({i}));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) got[i] = draw({i});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(got[i], expected[i]));
}

TEST(RuntimeRandomScope, GradientsFlowThroughRandomOperators) {
  const at::Tensor x = at::ones({64}).requires_grad_(true);
  at::Tensor y;
  {
    const RandomScope scope({9});
    y = at::dropout(x, 0.5, true);
  }
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), y.detach()));  // 0 where dropped, 2 elsewhere
  EXPECT_NE(y.sum().item<double>(), 128.0);
}

}  // namespace
}  // namespace penstock::runtime
