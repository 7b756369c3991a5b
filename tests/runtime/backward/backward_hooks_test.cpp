// Hooks and memory of the split backward: each hook fires once, in its half, with the gradient of a full
// backward, and between the halves only what the weights need is alive.
#include "runtime/support/split_check.h"

#include <torch/csrc/autograd/function_hook.h>

namespace penstock::test {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;

struct Counted : torch::autograd::FunctionPostHook {
  explicit Counted(int& count) : count_(count) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    ++count_;
    return outputs;
  }
  int& count_;
};

struct Network {
  Tensor w1 = torch::randn({4, 4}, torch::requires_grad());
  Tensor b1 = torch::randn({4}, torch::requires_grad());
  Tensor g = torch::randn({4}, torch::requires_grad());
  Tensor w2 = torch::randn({4, 4}, torch::requires_grad());
  Tensor x = input({3, 4});
  Tensor h, y;

  void forward() {
    h = F::linear(x, w1, b1);
    y = F::linear(at::layer_norm(h.relu(), {4}, g), w2);
  }
  Tensors params() const { return {w1, b1, g, w2}; }
};

TEST(RuntimeSplitHooks, OnParametersFireOnceInWeightBackward) {
  torch::manual_seed(7);
  Network net;
  std::vector<int> tensor_hooks(4), accumulator_hooks(4);
  std::vector<c10::intrusive_ptr<torch::autograd::Node>> accumulators;
  for (std::size_t i = 0; i < 4; ++i) {
    const Tensor param = net.params()[i];
    param.register_hook([&tensor_hooks, i](const Tensor& grad) {
      ++tensor_hooks[i];
      return grad * 2;
    });
    accumulators.push_back(torch::autograd::impl::grad_accumulator(param));
    accumulators.back()->add_post_hook(std::make_unique<Counted>(accumulator_hooks[i]));
  }
  net.forward();
  const Tensor grad = torch::randn({3, 4});
  Tensors expected =
      torch::autograd::grad({net.y}, {net.w1, net.b1, net.g, net.w2}, {grad}, true);  // hooks fire here
  EXPECT_EQ(tensor_hooks, std::vector<int>(4, 1));

  runtime::InputBackward half = runtime::backward_input({net.y}, {grad}, {net.x});
  EXPECT_EQ(tensor_hooks, std::vector<int>(4, 1)) << "not in the input half";
  half.weights.run();
  EXPECT_EQ(tensor_hooks, std::vector<int>(4, 2));
  EXPECT_EQ(accumulator_hooks, std::vector<int>(4, 1));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(net.params()[i].grad().equal(expected[i]));
}

TEST(RuntimeSplitHooks, OnActivationsFireOnceInInputBackwardAndAffectBothHalves) {
  torch::manual_seed(8);
  Network net;
  net.forward();
  int fired = 0;
  const Tensor grad = torch::randn({3, 4});
  net.h.register_hook([&](const Tensor& g) {
    ++fired;
    return g * 3;
  });
  net.h.retain_grad();
  const Tensors expected =
      torch::autograd::grad({net.y}, {net.x, net.w1, net.b1, net.g, net.w2}, {grad}, true);
  fired = 0;
  runtime::InputBackward half = runtime::backward_input({net.y}, {grad}, {net.x});
  EXPECT_TRUE(half.input_grads[0].equal(expected[0]));
  half.weights.run();
  EXPECT_EQ(fired, 1);
  EXPECT_TRUE(net.h.grad().defined());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(net.params()[i].grad().equal(expected[i + 1]));
}

TEST(RuntimeSplitHooks, OnComputedWeightFireOnce) {
  torch::manual_seed(9);
  const Tensor w = torch::randn({4, 4}, torch::requires_grad()),
               s = torch::randn({4}, torch::requires_grad());
  const Tensor x = input({3, 4});
  int fired = 0;
  const Tensor scaled = w * 2, shift = s * 3;
  for (const Tensor& t : {scaled, shift}) {
    t.register_hook([&](const Tensor& g) {
      ++fired;
      return g * 5;
    });
  }
  const Tensor y = (F::linear(x, scaled) + shift).tanh();
  const Tensor grad = torch::randn({3, 4});
  const Tensors expected = torch::autograd::grad({y}, {w, s}, {grad}, true);
  fired = 0;
  runtime::backward_input({y}, {grad}, {x}).weights.run();
  EXPECT_EQ(fired, 2);
  EXPECT_TRUE(w.grad().equal(expected[0]));
  EXPECT_TRUE(s.grad().equal(expected[1]));
}

using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

Weak weak(const Tensor& tensor) {
  return Weak(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
}

TEST(RuntimeSplitMemory, KeepsOnlyWhatWeightBackwardNeeds) {
  Tensor w1 = torch::randn({4, 4}, torch::requires_grad()), w2 = torch::randn({4, 4}, torch::requires_grad());
  Tensor g = torch::randn({4}, torch::requires_grad());
  std::vector<Weak> inner, needed;
  for (const bool run : {true, false}) {
    inner.clear();
    needed.clear();
    Tensor kept_output;
    runtime::InputBackward half;
    {
      const Tensor x = input({3, 4});
      const Tensor a = F::linear(x * 1, w1);
      const Tensor b = a.tanh();                   // saves its result
      const Tensor c = at::layer_norm(b, {4}, g);  // saves b
      const Tensor d = c.exp();                    // saves its result, which linear also saves
      const Tensor e = F::linear(d, w2);
      const Tensor f = e.softmax(1);  // saves its result
      const Tensor y = f * e;         // saves both
      for (const Tensor& t : {a, b, c, e, f}) inner.push_back(weak(t));
      needed.push_back(weak(d));
      kept_output = y;
      half = runtime::backward_input({y}, {torch::randn({3, 4})}, {x});
    }
    for (std::size_t i = 0; i < inner.size(); ++i) EXPECT_TRUE(inner[i].expired()) << i;
    EXPECT_FALSE(needed[0].expired());
    if (run) {
      half.weights.run();
    } else {
      half = {};
    }
    EXPECT_TRUE(needed[0].expired()) << (run ? "after the weight half" : "after dropping it");
  }
}

// Counts the bytes of the tensors of this thread.
class Meter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    live += size;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t live = 0;
  std::int64_t peak = 0;
};

// Kept by F per layer: the results of linear, gelu and layer norm. Captured for W: one gradient per linear.
// An input backward that freed nothing until its end would need 4 per layer; freeing incrementally, it needs
// 3 and a few temporaries.
TEST(RuntimeSplitMemory, InputBackwardFreesIncrementally) {
  constexpr std::int64_t layers = 12, rows = 256, width = 32, unit = rows * width * 4;
  Tensors weights, gains;
  for (std::int64_t i = 0; i < layers; ++i) {
    weights.push_back(torch::randn({width, width}, torch::requires_grad()));
    gains.push_back(torch::randn({width}, torch::requires_grad()));
  }
  const Tensor grad = torch::randn({rows, width});
  const auto meter = std::make_shared<Meter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  Tensor x = input({rows, width}), y = x;
  for (std::int64_t i = 0; i < layers; ++i) {
    y = at::layer_norm(at::gelu(F::linear(y, weights[i])), {width}, gains[i]);
  }
  const std::int64_t held = meter->live;
  EXPECT_NEAR(static_cast<double>(held), static_cast<double>((3 * layers + 1) * unit), 2.0 * unit);
  meter->peak = held;
  runtime::InputBackward half = runtime::backward_input({y}, {grad}, {x});
  EXPECT_LE(meter->peak, held + 5 * unit);
  y.reset();
  // For W, the linear of each layer keeps its input and its captured gradient.
  EXPECT_NEAR(static_cast<double>(meter->live), static_cast<double>((2 * layers + 1) * unit), 2.0 * unit);
  half.weights.run();
  EXPECT_LE(meter->live, 4 * unit);
}

TEST(RuntimeSplitMemory, DroppingWeightBackwardAddsNoGradient) {
  Network net;
  net.forward();
  runtime::backward_input({net.y}, {torch::ones({3, 4})}, {net.x});
  for (const Tensor& param : net.params()) EXPECT_FALSE(param.grad().defined());
}

}  // namespace
}  // namespace penstock::test
