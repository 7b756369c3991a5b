// The split backward compared bitwise with autograd: models, unusual outputs and inputs, hooks, memory,
// threads.
#include "runtime/support/split_check.h"
#include "support/error_message.h"
#include "support/models/functional_models.h"

#include <penstock/base/error.h>

#include <thread>

namespace penstock::test {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using at::Tensor;

Tensors token_batch() {
  return {torch::randint(0, 11, {3, 5}, torch::kLong)};
}

TEST(RuntimeSplitBackward, AccumulatesOverPassesOfMlp) {
  expect_same_as_plain(functional_mlp, batches_of([] { return Tensors{input({4, 8})}; }, 4));
}

TEST(RuntimeSplitBackward, MatchesAutogradForTransformerBlocks) {
  expect_same_as_plain([] { return functional_transformer(2, false, false); },
                       batches_of(
                           [] {
                             return Tensors{input({3, 5, 16})};
                           },
                           3));
}

TEST(RuntimeSplitBackward, EmbeddingStageDefersEverythingToWeightBackward) {
  expect_same_as_plain([] { return functional_transformer(1, true, false); }, batches_of(token_batch, 3));
}

TEST(RuntimeSplitBackward, SupportsHeadTiedToEmbeddingInOneStage) {
  expect_same_as_plain([] { return functional_transformer(1, true, true); }, batches_of(token_batch, 3));
}

TEST(RuntimeSplitBackward, SupportsLastStageWithHead) {
  expect_same_as_plain([] { return functional_transformer(1, false, true); },
                       batches_of(
                           [] {
                             return Tensors{input({2, 5, 16})};
                           },
                           2));
}

TEST(RuntimeSplitBackward, SupportsConvNetWithBatchNorm) {
  expect_same_as_plain(functional_cnn, batches_of([] { return Tensors{input({2, 3, 8, 8})}; }, 3));
}

TEST(RuntimeSplitBackward, SupportsChannelsLastInput) {
  expect_same_as_plain(
      functional_cnn,
      batches_of(
          [] {
            const Tensor x = torch::randn({2, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
            return Tensors{x.set_requires_grad(true)};
          },
          2));
}

TEST(RuntimeSplitBackward, SupportsGruAndLstmCells) {
  const Build build = [] {
    torch::manual_seed(4);
    nn::GRU gru(nn::GRUOptions(4, 6));
    nn::LSTM lstm(nn::LSTMOptions(6, 4));
    FunctionalModel model;
    model.params = gru->parameters();
    for (const Tensor& p : lstm->parameters()) model.params.push_back(p);
    model.forward = [gru, lstm](const Tensors& x) mutable {
      const auto [hidden, state] = gru->forward(x[0]);
      const auto [result, states] = lstm->forward(hidden);
      return Tensors{result, state};
    };
    return model;
  };
  expect_same_as_plain(build, batches_of([] { return Tensors{input({3, 2, 4})}; }, 2));
}

Build with_weights(std::vector<std::vector<std::int64_t>> shapes,
                   std::function<Tensors(const Tensors& params, const Tensors& inputs)> forward) {
  return [=] {
    torch::manual_seed(5);
    FunctionalModel model;
    for (const auto& shape : shapes) model.params.push_back(torch::randn(shape).set_requires_grad(true));
    model.forward = [params = model.params, forward](const Tensors& inputs) {
      return forward(params, inputs);
    };
    return model;
  };
}

TEST(RuntimeSplitBackward, SupportsWeightUsedThreeTimes) {
  expect_same_as_plain(with_weights({{4, 4}, {4}},
                                    [](const Tensors& p, const Tensors& x) {
                                      Tensor y = F::linear(x[0], p[0]).relu() * p[1];
                                      y = F::linear(y.tanh(), p[0], p[1]);
                                      return Tensors{F::linear(at::layer_norm(y, {4}, p[1]), p[0].t())};
                                    }),
                       batches_of(
                           [] {
                             return Tensors{input({3, 4})};
                           },
                           3));
}

TEST(RuntimeSplitBackward, SupportsWeightComputedFromParameters) {
  expect_same_as_plain(with_weights({{4, 4}, {4, 1}, {4}},
                                    [](const Tensors& p, const Tensors& x) {
                                      const Tensor scaled = p[0] * p[1] / p[0].norm();
                                      const Tensor y = F::linear(x[0], scaled) + p[2] * p[1].sum();
                                      return Tensors{F::linear(y.sigmoid(), scaled + p[0]), y * p[2]};
                                    }),
                       batches_of(
                           [] {
                             return Tensors{input({3, 4})};
                           },
                           2));
}

TEST(RuntimeSplitBackward, SupportsViewIntegerConstantAndUnusedOutputs) {
  expect_same_as_plain(with_weights({{6, 4}},
                                    [](const Tensors& p, const Tensors& x) {
                                      const Tensor y = F::linear(x[0], p[0]);
                                      const auto halves = y.chunk(2, 1);
                                      return Tensors{y.view({-1}), halves[0],        halves[1].t(),
                                                     y.argmax(1),  torch::ones({2}), x[1]};
                                    }),
                       batches_of(
                           [] {
                             return Tensors{input({3, 4}), torch::arange(3)};
                           },
                           2));
}

TEST(RuntimeSplitBackward, SupportsOutputViewsModifiedInPlace) {
  expect_same_as_plain(with_weights({{4, 4}, {4}},
                                    [](const Tensors& p, const Tensors& x) {
                                      const Tensor y = F::linear(x[0], p[0]);
                                      y.select(0, 1).mul_(p[1]);
                                      return Tensors{y, y.narrow(0, 0, 1)};
                                    }),
                       batches_of(
                           [] {
                             return Tensors{input({3, 4})};
                           },
                           2));
}

TEST(RuntimeSplitBackward, SupportsOutputsThatAreInputsOrParameters) {
  expect_same_as_plain(
      with_weights({{4}, {4, 4}},
                   [](const Tensors& p, const Tensors& x) {
                     return Tensors{x[0], p[0], p[0] * 2, F::linear(x[0] * p[0], p[1]), x[1]};
                   }),
      batches_of(
          [] {
            return Tensors{input({3, 4}), input({2})};
          },
          2));
}

TEST(RuntimeSplitBackward, SupportsInputsWithoutGradientUnusedOrUndefined) {
  expect_same_as_plain(
      with_weights({{4, 4}},
                   [](const Tensors& p, const Tensors& x) { return Tensors{F::linear(x[0] + x[1], p[0])}; }),
      batches_of(
          [] {
            return Tensors{torch::randn({3, 4}), input({3, 4}), input({2}), Tensor()};
          },
          2));
}

TEST(RuntimeSplitBackward, FrozenParametersGetNoGradient) {
  const Build build = [] {
    FunctionalModel model = functional_mlp();
    model.params[0].set_requires_grad(false);
    model.params[3].set_requires_grad(false);
    return model;
  };
  expect_same_as_plain(build, batches_of([] { return Tensors{input({4, 8})}; }, 2));
  const Build all_frozen = [] {
    FunctionalModel model = functional_mlp();
    for (Tensor& param : model.params) param.set_requires_grad(false);
    return model;
  };
  expect_same_as_plain(all_frozen, batches_of([] { return Tensors{input({4, 8})}; }, 2));
}

TEST(RuntimeSplitBackward, SkipsUndefinedOutputGradients) {
  const Tensor w = torch::randn({4, 4}, torch::requires_grad()),
               v = torch::randn({4, 4}, torch::requires_grad());
  const Tensor x = input({2, 4});
  runtime::InputBackward half =
      runtime::backward_input({x.matmul(w), x.matmul(v)}, {torch::ones({2, 4}), Tensor()}, {x});
  half.weights.run();
  EXPECT_TRUE(w.grad().defined());
  EXPECT_FALSE(v.grad().defined());
  const runtime::InputBackward nothing = runtime::backward_input({x.matmul(w)}, {Tensor()}, {x});
  EXPECT_FALSE(nothing.input_grads[0].defined());
  EXPECT_FALSE(nothing.weights.pending());
}

TEST(RuntimeSplitBackward, DuplicateInputKeepsItsOwnGradUnchanged) {
  for (const bool split : {false, true}) {
    const Tensor x = input({3});
    x.mutable_grad() = torch::full({3}, 5.0);
    const Tensors outputs = {x * 2 + x};
    const Tensors grads = split ? runtime::backward_input(outputs, {torch::ones({3})}, {x, x}).input_grads
                                : runtime::backward_full(outputs, {torch::ones({3})}, {x, x});
    EXPECT_TRUE(grads[0].equal(torch::full({3}, 3.0)));
    EXPECT_FALSE(grads[1].defined());
    EXPECT_TRUE(x.grad().equal(torch::full({3}, 5.0)));
  }
}

TEST(RuntimeSplitBackward, ReturnsDenseGradientsForExpandedOrPermutedOutputs) {
  const Tensor x = input({4, 3});
  const runtime::InputBackward half = runtime::backward_input({x.sum()}, {torch::ones({})}, {x});
  EXPECT_EQ(half.input_grads[0].strides(), x.strides());
  const Tensor wide = torch::randn({1, 3}).expand({4, 3}).set_requires_grad(true);
  EXPECT_TRUE(runtime::backward_input({wide * 2}, {torch::ones({4, 3}).t().contiguous().t()}, {wide})
                  .input_grads[0]
                  .is_contiguous());
}

TEST(RuntimeSplitBackward, RejectsMismatchedGradientsAndNonLeafInputs) {
  const Tensor x = input({3});
  EXPECT_ERROR(runtime::backward_full({x * 2}, {}, {x}), UsageError,
               "1 outputs needs as many gradients, not 0");
  EXPECT_ERROR(runtime::backward_full({x * 2}, {torch::ones({4})}, {x}), ShapeError,
               "got a gradient of shape [4]");
  EXPECT_ERROR(runtime::backward_input({x * 2}, {torch::ones({1})}, {x}), ShapeError,
               "got a gradient of shape [1]");
  const Tensor result = x * 2;
  EXPECT_ERROR(runtime::backward_input({result * 2}, {torch::ones({3})}, {result}), UsageError,
               "is not a leaf tensor");
}

TEST(RuntimeSplitBackward, WeightBackwardRunsOnce) {
  const Tensor x = input({3, 4}), w = torch::randn({4, 4}, torch::requires_grad());
  runtime::InputBackward half = runtime::backward_input({x.matmul(w)}, {torch::ones({3, 4})}, {x});
  EXPECT_TRUE(half.weights.pending());
  half.weights.run();
  EXPECT_FALSE(half.weights.pending());
  EXPECT_ERROR(half.weights.run(), UsageError, "the weight half of a backward pass ran twice");
  EXPECT_NO_THROW(runtime::WeightWork().run());
}

TEST(RuntimeSplitBackward, UserFunctionRunsInWeightBackward) {
  std::vector<std::string> calls;
  const Tensor x = input({3});
  runtime::InputBackward half = runtime::backward_input_with(
      [&] {
        calls.emplace_back("built");
        return [&] { calls.emplace_back("ran"); };
      },
      {x * 2}, {torch::ones({3})}, {x});
  EXPECT_TRUE(half.input_grads[0].equal(torch::full({3}, 2.0)));
  EXPECT_EQ(calls, (std::vector<std::string>{"built"}));
  half.weights.run();
  EXPECT_EQ(calls, (std::vector<std::string>{"built", "ran"}));
}

TEST(RuntimeSplitBackward, HookErrorPropagatesWithoutSideEffects) {
  const Tensor x = input({3, 4}), w = torch::randn({4, 4}, torch::requires_grad());
  const auto attempt = [&](bool armed) {
    const Tensor y = x.matmul(w);
    y.register_hook([=](const Tensor&) {
      if (armed) throw std::runtime_error("user");
    });
    return runtime::backward_input({y * 2}, {torch::ones({3, 4})}, {x});
  };
  EXPECT_THROW(attempt(true), std::runtime_error);
  EXPECT_FALSE(w.grad().defined());
  EXPECT_FALSE(x.grad().defined());
  attempt(false).weights.run();
  EXPECT_TRUE(w.grad().equal(x.detach().t().matmul(torch::full({3, 4}, 2.0))));
}

// Several threads act as ranks of one process: each has its own graphs, and all share the engine.
TEST(RuntimeSplitBackward, IsThreadSafe) {
  constexpr int threads = 4;
  const Build build = [] {
    FunctionalModel model = functional_mlp();
    return model;
  };
  const auto inputs = batches_of([] { return Tensors{input({4, 8})}; }, 20);
  std::vector<FunctionalModel> models;
  std::vector<Gradients> results(threads);
  for (int i = 0; i < threads; ++i) models.push_back(functional_mlp());
  const Gradients expected = run(build, inputs, BackwardKind::Plain);
  std::vector<std::thread> ranks;
  for (int i = 0; i < threads; ++i) {
    ranks.emplace_back([&, i] {
      for (std::size_t batch = 0; batch < inputs.size(); ++batch) {
        const Tensors x = leaves(inputs[batch]);
        const Tensors outputs = models[i].forward(x);
        runtime::InputBackward half = runtime::backward_input(outputs, grads_for(outputs, batch), x);
        results[i].inputs.push_back(half.input_grads[0]);
        half.weights.run();
      }
      for (const Tensor& param : models[i].params) results[i].params.push_back(param.grad());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const Gradients& result : results) {
    expect_equal(result.inputs, expected.inputs, "input gradient");
    expect_equal(result.params, expected.params, "parameter gradient");
  }
}

}  // namespace
}  // namespace penstock::test
