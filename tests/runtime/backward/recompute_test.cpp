// Recomputation and the deferred linear: bitwise equal to autograd, with full and split backward passes,
// alone and combined.
#include "runtime/support/split_check.h"

#include <penstock/runtime/deferred_linear.h>
#include <penstock/runtime/module_call.h>
#include <penstock/runtime/random.h>
#include <penstock/runtime/recompute.h>

#include <ATen/autocast_mode.h>

namespace penstock::test {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;

struct Layer {
  Tensor w, b, g, v;
};

std::vector<Layer> layers(int count, FunctionalModel& model) {
  torch::manual_seed(11);
  std::vector<Layer> result;
  for (int i = 0; i < count; ++i) {
    result.push_back({torch::randn({8, 6}), torch::randn({8}), torch::randn({8}), torch::randn({6, 8})});
    for (const Tensor& t : {result[i].w, result[i].b, result[i].g, result[i].v}) {
      t.set_requires_grad(true);
      model.params.push_back(t);
    }
  }
  return result;
}

enum class Linear { Plain, Deferred };

Tensor linear(Linear kind, const Tensor& x, const Tensor& w, const Tensor& b = {}) {
  return kind == Linear::Plain ? at::linear(x, w, b) : runtime::deferred_linear(x, w, b);
}

Tensor block(Linear kind, const Layer& l, const Tensor& x) {
  const Tensor h = at::dropout(at::layer_norm(linear(kind, x, l.w, l.b).tanh(), {8}, l.g), 0.3, true);
  return x + linear(kind, h, l.v);
}

Build stack(int count, Linear kind, bool recomputed) {
  return [=] {
    FunctionalModel model;
    const auto all = layers(count, model);
    model.forward = [=](const Tensors& inputs) {
      Tensor x = inputs[0];
      for (const Layer& l : all) {
        const auto run = [kind, l](const Tensors& t) { return Tensors{block(kind, l, t[0])}; };
        x = recomputed ? runtime::recompute(run, {x})[0] : run({x})[0];
      }
      return Tensors{x};
    };
    return model;
  };
}

void expect_equal_gradients(const Build& ours, const Build& plain, const std::vector<Tensors>& batches) {
  const Gradients expected = run(plain, batches, BackwardKind::Plain);
  for (const BackwardKind backward_kind : {BackwardKind::Plain, BackwardKind::Full, BackwardKind::Split}) {
    SCOPED_TRACE(static_cast<int>(backward_kind));
    const Gradients got = run(ours, batches, backward_kind);
    expect_equal(got.inputs, expected.inputs, "input gradient");
    expect_equal(got.params, expected.params, "parameter gradient");
  }
}

std::vector<Tensors> batches(at::IntArrayRef shape) {
  const auto sizes = shape.vec();
  return batches_of([sizes] { return Tensors{input(sizes)}; }, 3);
}

TEST(RuntimeRecompute, RepeatsDropoutAndGradientsForFullAndSplitBackward) {
  expect_equal_gradients(stack(3, Linear::Plain, true), stack(3, Linear::Plain, false), batches({4, 6}));
}

TEST(RuntimeRecompute, SupportsNesting) {
  const Build nested = [] {
    FunctionalModel model;
    const auto all = layers(4, model);
    model.forward = [all](const Tensors& inputs) {
      return runtime::recompute(
          [all](const Tensors& outer) {
            Tensors x = outer;
            for (const Layer& l : all) {
              x = runtime::recompute([l](const Tensors& t) { return Tensors{block(Linear::Plain, l, t[0])}; },
                                     x);
            }
            return x;
          },
          inputs);
    };
    return model;
  };
  expect_equal_gradients(nested, stack(4, Linear::Plain, false), batches({4, 6}));
}

TEST(RuntimeRecompute, SupportsIntegerInputs) {
  const auto build = [](bool recomputed) -> Build {
    return [recomputed] {
      FunctionalModel model;
      const auto all = layers(1, model);
      const Tensor table = torch::randn({9, 6}, torch::requires_grad());
      model.params.push_back(table);
      model.forward = [=](const Tensors& inputs) {
        const auto run = [=](const Tensors& t) {
          return Tensors{block(Linear::Plain, all[0], F::embedding(t[0], table)), t[0]};
        };
        return recomputed ? runtime::recompute(run, inputs) : run(inputs);
      };
      return model;
    };
  };
  expect_equal_gradients(build(true), build(false),
                         batches_of([] { return Tensors{torch::randint(0, 9, {5}, torch::kLong)}; }, 2));
}

// A matrix that does not depend on the input, like a position bias that several blocks share: its gradient
// belongs to the weight half, whatever else reads it.
TEST(RuntimeRecompute, SupportsInputsThatDependOnlyOnParameters) {
  enum class Outside { Nothing, Sum, Product };
  for (const Outside outside : {Outside::Nothing, Outside::Sum, Outside::Product}) {
    SCOPED_TRACE(static_cast<int>(outside));
    const auto build = [outside](bool recomputed) -> Build {
      return [=] {
        FunctionalModel model;
        const auto all = layers(outside == Outside::Nothing ? 2 : 1, model);
        const Tensor table = torch::randn({6, 6}).set_requires_grad(true);
        model.params.push_back(table);
        model.forward = [=](const Tensors& inputs) {
          const Tensor matrix = table.tanh();
          Tensor x = inputs[0];
          for (const Layer& l : all) {
            const auto run = [l](const Tensors& t) {
              return Tensors{block(Linear::Plain, l, t[0]) + t[0].matmul(t[1])};
            };
            x = recomputed ? runtime::recompute(run, {x, matrix})[0] : run({x, matrix})[0];
          }
          if (outside == Outside::Sum) x = x * matrix.sum();
          if (outside == Outside::Product) x = x.matmul(matrix);
          return Tensors{x};
        };
        return model;
      };
    };
    expect_equal_gradients(build(true), build(false), batches({4, 6}));
  }
}

class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

// A weight is read inside of the recomputed function first, then outside: there, it needs a gradient.
TEST(RuntimeRecompute, RepeatsAutocast) {
  const auto build = [](bool recomputed) -> Build {
    return [recomputed] {
      FunctionalModel model;
      const auto all = layers(1, model);
      model.forward = [=](const Tensors& inputs) {
        const Autocast autocast;
        const auto run = [&](const Tensors& t) { return Tensors{at::linear(t[0], all[0].w).tanh()}; };
        const Tensor h =
            recomputed ? runtime::recompute(
                             [w = all[0].w](const Tensors& t) { return Tensors{at::linear(t[0], w).tanh()}; },
                             inputs)[0]
                       : run(inputs)[0];
        EXPECT_EQ(h.scalar_type(), at::kBFloat16);
        return Tensors{(at::linear(h, all[0].v) + at::linear(inputs[0], all[0].w).sum()).to(at::kFloat)};
      };
      return model;
    };
  };
  const auto one = batches_of([] { return Tensors{input({4, 6})}; }, 1);
  const Gradients expected = run(build(false), one, BackwardKind::Plain);
  for (const BackwardKind kind : {BackwardKind::Full, BackwardKind::Split}) {
    const Gradients got = run(build(true), one, kind);
    for (std::size_t i = 0; i < expected.params.size(); ++i) {
      ASSERT_EQ(got.params[i].defined(), expected.params[i].defined()) << i;
      if (got.params[i].defined()) {  // the cached cast sums its gradients in bfloat16
        EXPECT_TRUE(at::allclose(got.params[i], expected.params[i], 2e-2, 2e-2)) << i;
      }
    }
  }
}

TEST(RuntimeRecompute, RepeatsRandomNumbersOfScope) {
  const auto numbers = [](bool recomputed) {
    const runtime::RandomScope scope({.seed = 3});
    const Tensor x = input({64});
    Tensors all{at::rand({2})};
    const auto run = [](const Tensors& t) { return Tensors{at::dropout(t[0], 0.5, true)}; };
    const Tensor y = recomputed ? runtime::recompute(run, {x})[0] : run({x})[0];
    all.push_back(at::rand({2}));
    all.push_back(runtime::backward_full({y}, {torch::ones({64})}, {x})[0]);
    all.push_back(at::rand({2}));
    return all;
  };
  const Tensors expected = numbers(false), got = numbers(true);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
}

struct CountingImpl : torch::nn::Module {
  CountingImpl() { weight = register_parameter("weight", torch::arange(1, 7).to(at::kFloat)); }
  std::pair<Tensor, Tensor> forward(const Tensor& x, double scale) {
    ++calls;
    const Tensor h = at::dropout(x * weight, 0.5, true).tanh();
    return {h * scale, h.exp()};
  }
  Tensor weight;
  int calls = 0;
};
TORCH_MODULE(Counting);

TEST(RuntimeRecompute, RecomputesCallsOfModules) {
  const auto gradients = [](bool recomputed) {
    torch::manual_seed(5);
    Counting module;
    if (recomputed) runtime::recompute_calls(module.ptr());
    const Tensor x = input({3, 6});
    torch::manual_seed(7);
    const auto [first, second] = runtime::call(module, x, 2.0);
    const Tensors grads =
        runtime::backward_full({first, second}, {torch::ones({3, 6}), torch::ones({3, 6})}, {x});
    {
      const torch::NoGradGuard no_grad;
      runtime::call(module, x, 2.0);
    }
    EXPECT_EQ(module->calls, recomputed ? 3 : 2);
    return Tensors{first.detach(), second.detach(), grads[0], module->weight.grad()};
  };
  const Tensors expected = gradients(false), got = gradients(true);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
}

TEST(RuntimeRecompute, DoesNotAdvanceRandomGenerator) {
  const auto draw = [](bool recomputed) {
    torch::manual_seed(3);
    const Tensor x = input({4, 4});
    const auto run = [](const Tensors& t) { return Tensors{at::dropout(t[0], 0.5, true)}; };
    const Tensors y = recomputed ? runtime::recompute(run, {x}) : run({x});
    runtime::backward_full(y, {torch::ones({4, 4})}, {x});
    return torch::rand({3});
  };
  EXPECT_TRUE(draw(true).equal(draw(false)));
}

TEST(RuntimeRecompute, CallsSeedBeforeBothRuns) {
  const Tensor x = input({64});
  runtime::RecomputeOptions options;
  options.seed = [] { torch::manual_seed(17); };
  const Tensors y =
      recompute([](const Tensors& t) { return Tensors{at::dropout(t[0], 0.5, true)}; }, {x}, options);
  torch::manual_seed(99);
  const Tensors grads = runtime::backward_full(y, {torch::ones({64})}, {x});
  EXPECT_TRUE(grads[0].ne(0).equal(y[0].ne(0)));
}

TEST(RuntimeRecompute, KeepsOnlyInputs) {
  c10::weak_intrusive_ptr<c10::StorageImpl> inside{c10::intrusive_ptr<c10::StorageImpl>()};
  const Tensor x = input({4});
  const Tensors y = runtime::recompute(
      [&](const Tensors& t) {
        const Tensor h = t[0].exp();
        inside = c10::weak_intrusive_ptr<c10::StorageImpl>(
            c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(h.storage().unsafeGetStorageImpl()));
        return Tensors{h * 2};
      },
      {x});
  EXPECT_TRUE(inside.expired());
  EXPECT_TRUE(runtime::backward_full(y, {torch::ones({4})}, {x})[0].equal(2 * x.detach().exp()));
}

TEST(RuntimeRecompute, SupportsValueTreesAndNoGrad) {
  const Tensor x = input({3});
  const auto run = [](const std::vector<c10::IValue>& args) -> c10::IValue {
    return c10::ivalue::Tuple::create({args[0].toTensor() * args[1].toDouble(), c10::IValue("text")});
  };
  const c10::IValue y = runtime::recompute_tree(run, {x, 4.0});
  const Tensor first = y.toTupleRef().elements()[0].toTensor();
  EXPECT_EQ(y.toTupleRef().elements()[1].toStringRef(), "text");
  EXPECT_TRUE(runtime::backward_full({first}, {torch::ones({3})}, {x})[0].equal(torch::full({3}, 4.0)));
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(runtime::recompute_tree(run, {x, 4.0}).toTupleRef().elements()[0].toTensor().requires_grad());
}

TEST(RuntimeDeferredLinear, IsBitwiseEqualToLinear) {
  expect_equal_gradients(stack(2, Linear::Deferred, false), stack(2, Linear::Plain, false), batches({4, 6}));
  expect_equal_gradients(stack(2, Linear::Deferred, false), stack(2, Linear::Plain, false),
                         batches({2, 5, 6}));
}

TEST(RuntimeDeferredLinear, WorksInsideRecomputation) {
  expect_equal_gradients(stack(3, Linear::Deferred, true), stack(3, Linear::Plain, false), batches({4, 6}));
}

TEST(RuntimeDeferredLinear, SupportsSharedWeightWithHooks) {
  const auto build = [](Linear kind) -> Build {
    return [kind] {
      torch::manual_seed(12);
      FunctionalModel model;
      const Tensor w = torch::randn({6, 6}, torch::requires_grad());
      const Tensor b = torch::randn({6}, torch::requires_grad());
      const Tensor hooked = torch::randn({6, 6}, torch::requires_grad());
      hooked.register_hook([](const Tensor& grad) { return grad * 2; });
      model.params = {w, b, hooked};
      model.forward = [=](const Tensors& x) {
        const Tensor h = linear(kind, x[0], w, b).tanh() * b;
        return Tensors{at::linear(linear(kind, h, hooked), w)};
      };
      return model;
    };
  };
  expect_equal_gradients(build(Linear::Deferred), build(Linear::Plain), batches({4, 6}));
}

TEST(RuntimeDeferredLinear, SupportsMissingInputOrWeightGradient) {
  const auto build = [](Linear kind, bool frozen) -> Build {
    return [=] {
      torch::manual_seed(13);
      FunctionalModel model;
      const Tensor w = torch::randn({6, 6}).set_requires_grad(!frozen);
      const Tensor b = torch::randn({6}, torch::requires_grad());
      model.params = {w, b};
      model.forward = [=](const Tensors& x) { return Tensors{linear(kind, x[0], w, b).tanh()}; };
      return model;
    };
  };
  const auto plain_inputs = batches_of([] { return Tensors{torch::randn({4, 6})}; }, 2);
  expect_equal_gradients(build(Linear::Deferred, false), build(Linear::Plain, false), plain_inputs);
  expect_equal_gradients(build(Linear::Deferred, true), build(Linear::Plain, true), batches({4, 6}));
}

TEST(RuntimeDeferredLinear, MatchesLinearForComplexTensors) {
  torch::manual_seed(3);
  const auto options = at::TensorOptions(at::kComplexDouble).requires_grad(true);
  const at::Tensor x = torch::randn({4, 3}, options), w = torch::randn({2, 3}, options),
                   b = torch::randn({2}, options);
  const auto gradients = [&](const at::Tensor& output) {
    return torch::autograd::grad({at::abs(output).sum()}, {x, w, b});
  };
  const auto expected = gradients(at::linear(x, w, b)), actual = gradients(runtime::deferred_linear(x, w, b));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(actual[i], expected[i])) << i;
}

}  // namespace
}  // namespace penstock::test
