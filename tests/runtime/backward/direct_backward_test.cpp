// The backward pass without autograd's engine: gradients are bitwise those of the engine, and graphs that it
// does not support are left untouched.
#include "runtime/backward/direct_backward.h"

#include "runtime/support/split_check.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

namespace penstock::test {
namespace {

using at::Tensor;
using runtime::run_backward_directly;
using torch::autograd::impl::gradient_edge;

bool run(const Tensors& outputs, const Tensors& grads) {
  torch::autograd::edge_list roots;
  for (const Tensor& output : outputs) roots.push_back(gradient_edge(output));
  return run_backward_directly(roots, grads);
}

bool run(const Tensor& output) {
  return run(Tensors{output}, Tensors{torch::ones_like(output)});
}

Tensor leaf(const Tensor& values) {
  return values.clone().set_requires_grad(true);
}

// Gradients of very different sizes arrive at `w` and at every `y` over several paths, so that another order
// of their sum rounds differently.
Tensors residual_network(const Tensor& x, const Tensor& w, const Tensor& b, int layers) {
  Tensor y = x;
  for (int i = 0; i < layers; ++i) {
    const Tensor hidden = at::addmm(b, y, w.t()).tanh();
    y = y + hidden * std::pow(10.0, i % 5 - 2) + (y * w.select(0, i % 4)).sin();
  }
  return {y.chunk(2)[0], (y * x).sum(), b.expand({3, 4})};
}

void expect_same_as_engine(int layers) {
  torch::manual_seed(layers);
  const Tensor x = torch::randn({6, 4}), w = torch::randn({4, 4}), b = torch::randn({4});
  const Tensors engine{leaf(x), leaf(w), leaf(b)}, direct{leaf(x), leaf(w), leaf(b)};
  for (int pass = 0; pass < 2; ++pass) {  // the second one adds to the gradients of the first
    const Tensors expected = residual_network(engine[0], engine[1], engine[2], layers);
    const Tensors actual = residual_network(direct[0], direct[1], direct[2], layers);
    const Tensors grads{torch::randn({3, 4}), torch::randn({}), torch::randn({3, 4})};
    torch::autograd::backward(expected, grads);
    ASSERT_TRUE(run(actual, grads));
    for (std::size_t i = 0; i < engine.size(); ++i) {
      EXPECT_TRUE(direct[i].grad().equal(engine[i].grad()))
          << layers << " layers, pass " << pass << ", " << i;
      EXPECT_EQ(direct[i].grad().strides(), engine[i].grad().strides());
    }
  }
}

TEST(RuntimeDirectBackward, SumsInTheOrderOfTheEngine) {
  for (const int layers : {1, 2, 7, 60}) expect_same_as_engine(layers);
}

TEST(RuntimeDirectBackward, CastsAndReducesGradientsLikeTheEngine) {
  const Tensor x = leaf(torch::randn({2, 3})), b = leaf(torch::randn({3}));
  const Tensor y = (x.to(at::kDouble) + b).to(at::kFloat);
  const Tensor grad = torch::randn({2, 3}, at::kDouble);  // becomes a float
  ASSERT_TRUE(run(Tensors{y}, Tensors{grad}));
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(x.grad().equal(grad.to(at::kFloat)));
  EXPECT_TRUE(b.grad().equal(grad.to(at::kFloat).to(at::kDouble).sum(0).to(at::kFloat)));
}

TEST(RuntimeDirectBackward, FreesSavedTensors) {
  const Tensor x = leaf(torch::randn({4}));
  const Tensor y = x.exp();
  ASSERT_TRUE(run(y));
  EXPECT_THROW(run(y), c10::Error) << "the saved result is gone";
}

TEST(RuntimeDirectBackward, DoesNotChangeGradientsOfTheCaller) {
  const Tensor x = leaf(torch::randn({4})), first = torch::randn({4}), second = torch::randn({4});
  const Tensors before{first.clone(), second.clone()};
  ASSERT_TRUE(run(Tensors{x.view({4}), x.view({4})}, Tensors{first, second}));
  ASSERT_TRUE(run(Tensors{x.view({4})}, Tensors{first}));
  EXPECT_TRUE(first.equal(before[0]));
  EXPECT_TRUE(second.equal(before[1]));
  EXPECT_TRUE(x.grad().equal(before[0] + before[1] + before[0]));
}

struct CustomFunction : torch::autograd::Function<CustomFunction> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static Tensors backward(torch::autograd::AutogradContext*, Tensors grads) { return {grads[0] * 2}; }
};

TEST(RuntimeDirectBackward, LeavesOtherNodesAndHooksToTheEngine) {
  const auto expect_left = [](const Tensor& x, const Tensor& y, const char* what) {
    EXPECT_FALSE(run(y)) << what;
    EXPECT_FALSE(x.grad().defined()) << what;
    y.backward(torch::ones_like(y));  // nothing was consumed
    EXPECT_TRUE(x.grad().defined()) << what;
  };
  Tensor x = leaf(torch::randn({4}));
  expect_left(x, CustomFunction::apply(x.exp()).sin(), "custom function");
  x = leaf(torch::randn({4}));
  x.register_hook([](const Tensor& grad) { return grad; });
  expect_left(x, x.exp(), "hook on a leaf");
  x = leaf(torch::randn({4}));
  const Tensor inner = x.exp();
  inner.register_hook([](const Tensor& grad) { return grad; });
  expect_left(x, inner * 2, "hook on an activation");
  x = leaf(torch::randn({4}));
  const Tensor retained = x.exp();
  retained.retain_grad();
  expect_left(x, retained * 2, "retained gradient");
  x = leaf(torch::randn({4}));
  Tensor base = x * 1;
  base.slice(0, 0, 2).mul_(2);  // a node that is not of an operator
  expect_left(x, base, "view changed in place");
}

TEST(RuntimeDirectBackward, LeavesPassesToTheEngineThatOthersObserve) {
  const Tensor x = leaf(torch::randn({4}));
  {
    const torch::autograd::DetectAnomalyGuard anomaly;
    EXPECT_FALSE(run(x.exp()));
  }
  {
    const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; }));
    EXPECT_FALSE(run(x.exp()));
    at::removeCallback(handle);
  }
  const Tensor y = x.exp(), z = x.cos();
  bool nested = true;
  y.register_hook([&](const Tensor& grad) {
    nested = run(z);
    return grad;
  });
  y.backward(torch::ones({4}));
  EXPECT_FALSE(nested) << "inside a pass of the engine";
  EXPECT_TRUE(run(x.exp()));
}

TEST(RuntimeDirectBackward, LeavesOtherDevicesToTheEngine) {
  const Tensor x = torch::empty({4}, at::TensorOptions(at::kMeta).requires_grad(true));
  EXPECT_FALSE(run(x.exp()));
}

TEST(RuntimeDirectBackward, ReportsMismatchedGradients) {
  const Tensor x = leaf(torch::randn({4}));
  EXPECT_THROW(run(Tensors{x.exp()}, Tensors{torch::ones({5})}), c10::Error);
}

}  // namespace
}  // namespace penstock::test
