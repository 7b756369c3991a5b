// Operators on simulated devices: the results of the CPU, and the errors of CUDA.
#include "simulated_device_test.h"
#include "support/error_message.h"
#include "support/same_bits.h"

#include <torch/library.h>

#include <functional>
#include <optional>

namespace penstock::test {
namespace {

using testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

class DevicesOperators : public SimulatedDeviceTest {};

struct OperatorCase {
  const char* name;
  std::function<Tensors(const at::Tensor& x, const at::Tensor& y)> run;
};

Tensors sorted(const at::Tensor& x) {
  const auto [values, indices] = x.sort(1);
  return {values, indices};
}
Tensors in_place(at::Tensor x, const at::Tensor& y) {
  x = x.clone();
  x.addmm_(x, y).clamp_(-1, 1).index_add_(0, torch::zeros({1}, x.options().dtype(at::kLong)),
                                          y.slice(0, 0, 1));
  return {x};
}
Tensors with_output(const at::Tensor& x, const at::Tensor& y) {
  at::Tensor out = torch::empty({0}, x.options()), large = torch::zeros({6, 6}, x.options());
  at::add_out(out, x, y);
  at::mm_out(large, x, y);
  at::Tensor values = torch::empty({0}, x.options()),
             indices = torch::empty({0}, x.options().dtype(at::kLong));
  at::topk_out(values, indices, x, 2);
  return {out, large, values, indices};
}
Tensors fused_step(const at::Tensor& x, const at::Tensor& y) {
  Tensors p{x.clone()}, g{y.clone()}, m{torch::zeros_like(x)}, v{torch::zeros_like(x)};
  Tensors step{torch::ones({}, x.options())};
  at::_fused_adamw_(p, g, m, v, {}, step, 1e-2, 0.9, 0.99, 0.1, 1e-8, false, false);
  return {p[0], m[0], v[0]};
}

const std::vector<OperatorCase> kOperatorCases = {
    {"arithmetic",
     [](auto& x, auto& y) {
       return Tensors{x + y * 2 - 1 / (x.abs() + 1), x.pow(2).sqrt()};
     }},
    {"products",
     [](auto& x, auto& y) {
       return Tensors{x.matmul(y), at::bmm(x.expand({2, 6, 6}), y.expand({2, 6, 6}))};
     }},
    {"reductions",
     [](auto& x, auto&) {
       return Tensors{x.sum(0), x.mean(), x.amax(1), x.norm(), x.std()};
     }},
    {"softmax",
     [](auto& x, auto&) {
       return Tensors{x.softmax(1), x.log_softmax(0)};
     }},
    {"shapes",
     [](auto& x, auto& y) {
       return Tensors{at::cat({x, y}, 1), at::stack({x, y}), x.t().reshape({4, 9}), x.roll(2)};
     }},
    {"indexing",
     [](auto& x, auto& y) {
       return Tensors{x.index_select(0, (y[0] > 0).to(at::kLong)), x.masked_select(y > 0), x.tril(),
                      x.gather(1, (y > 0).to(at::kLong))};
     }},
    {"comparison",
     [](auto& x, auto& y) {
       return Tensors{at::where(x > y, x, y), x.maximum(y), x.isfinite(), x.argmax(1)};
     }},
    {"splitting", [](auto& x, auto&) { return x.split(2, 1); }},
    {"normalization",
     [](auto& x, auto& y) {
       return Tensors{at::layer_norm(x, {6}, y[0], y[1]), at::group_norm(x, 2)};
     }},
    {"convolution",
     [](auto& x, auto& y) {
       return Tensors{at::conv2d(x.reshape({1, 1, 6, 6}), y.slice(0, 0, 3).reshape({2, 1, 3, 3}))};
     }},
    {"foreach",
     [](auto& x, auto& y) {
       return at::_foreach_add(Tensors{x, y}, Tensors{y, x});
     }},
    {"factories",
     [](auto& x, auto&) {
       return Tensors{at::arange(5, x.options()), at::eye(3, x.options()), at::full({2}, 7, x.options()),
                      at::linspace(0, 1, 4, x.options())};
     }},
    {"complex",
     [](auto& x, auto& y) {
       return Tensors{at::view_as_real(at::complex(x, y).conj().mm(at::complex(y, x)).resolve_conj())};
     }},
    {"sort", [](auto& x, auto&) { return sorted(x); }},
    {"in-place", [](auto& x, auto& y) { return in_place(x, y); }},
    {"output arguments", [](auto& x, auto& y) { return with_output(x, y); }},
    {"fused optimizer", [](auto& x, auto& y) { return fused_step(x, y); }},
};

TEST_F(DevicesOperators, GiveResultsOfCpu) {
  torch::manual_seed(0);
  const at::Tensor x = torch::randn({6, 6}), y = torch::randn({6, 6});
  for (const OperatorCase& test : kOperatorCases) {
    SCOPED_TRACE(test.name);
    const Tensors expected = test.run(x, y), results = test.run(x.to(kCuda1), y.to(kCuda1));
    ASSERT_EQ(results.size(), expected.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].device(), kCuda1);
      EXPECT_EQ(results[i].sizes(), expected[i].sizes());
      EXPECT_TRUE(at::allclose(results[i].cpu(), expected[i], 1e-5, 1e-6)) << i;
    }
  }
}

TEST_F(DevicesOperators, RejectMixedDevices) {
  const at::Tensor host = torch::ones({3, 3}), first = torch::ones({3, 3}, kCuda0);
  const at::Tensor second = torch::ones({3, 3}, kCuda1);
  const auto message = [](auto&& body) { return error_message<c10::Error>([&] { (void)body(); }); };
  const std::string expected = "Expected all tensors to be on the same device";
  EXPECT_THAT(message([&] { return first + second; }), HasSubstr(expected));
  EXPECT_THAT(message([&] { return first + host; }), HasSubstr(expected));
  EXPECT_THAT(message([&] { return host + first; }), HasSubstr(expected));
  EXPECT_THAT(message([&] { return first.mm(second); }), HasSubstr(expected));
  EXPECT_THAT(message([&] { return first.mm(host); }), HasSubstr(expected));
  EXPECT_THAT(message([&] { return host.mm(first); }), HasSubstr(expected));
  EXPECT_THAT(message([&] { return at::cat({first, second}); }), HasSubstr(expected));
  EXPECT_THAT(message([&] { return at::layer_norm(first, {3}, host[0], host[0]); }), HasSubstr(expected));
  EXPECT_THAT(message([&] { return at::embedding(first, torch::zeros({2}, at::kLong)); }),
              HasSubstr(expected));
  EXPECT_THAT(message([&] { return at::nll_loss(first, torch::zeros({3}, at::kLong)); }),
              HasSubstr(expected));
  EXPECT_THAT(message([&] {
                Tensors p{first.clone()}, g{first.clone()}, m{first.clone()}, v{first.clone()},
                    step{torch::ones({})};
                at::_fused_adamw_(p, g, m, v, {}, step, 1e-2, 0.9, 0.99, 0.1, 1e-8, false, false);
                return p[0];
              }),
              HasSubstr(expected));
}

TEST_F(DevicesOperators, AcceptNumbersAndIndicesOnCpu) {
  const at::Tensor x = torch::ones({3}, kCuda0), two = torch::tensor(2.F);
  EXPECT_TRUE(same_bits((x * two).cpu(), torch::full({3}, 2.F)));
  EXPECT_TRUE(same_bits((two - x).cpu(), torch::ones({3})));
  EXPECT_TRUE(same_bits(at::where(x > 2, x, two).cpu(), torch::full({3}, 2.F)));
  EXPECT_TRUE(same_bits(x.masked_fill(x > 0, two).cpu(), torch::full({3}, 2.F)));
  EXPECT_TRUE(same_bits(x.index({torch::tensor({0, 2})}).cpu(), torch::ones({2})));
}

struct AttentionRun {
  at::Tensor output, gradient;
};

AttentionRun run_attention(const at::Tensor& qkv, const std::optional<at::Tensor>& mask, bool is_causal) {
  const at::Tensor leaf = qkv.detach().requires_grad_();
  const Tensors parts = leaf.unbind(0);
  const at::Tensor output =
      at::scaled_dot_product_attention(parts[0], parts[1], parts[2], mask, 0, is_causal);
  output.square().sum().backward();
  return {output, leaf.grad()};
}

TEST_F(DevicesOperators, FusedAttentionGivesResultsOfCpu) {
  torch::manual_seed(0);
  const at::Tensor qkv = torch::randn({3, 2, 4, 6, 8}), mask = torch::randn({6, 6});
  const auto check = [&](at::ScalarType dtype, bool masked, const std::string& node) {
    const auto host_mask = masked ? std::optional(mask.to(dtype)) : std::nullopt;
    const auto device_mask = masked ? std::optional(mask.to(kCuda0, dtype)) : std::nullopt;
    const AttentionRun expected = run_attention(qkv.to(dtype), host_mask, !masked);
    const AttentionRun run = run_attention(qkv.to(kCuda0, dtype), device_mask, !masked);
    EXPECT_EQ(run.output.grad_fn()->name(), node);
    EXPECT_EQ(run.output.device(), kCuda0);
    const double tolerance = dtype == at::kBFloat16 ? 0.05 : 1e-5;
    EXPECT_TRUE(at::allclose(run.output.cpu(), expected.output, tolerance, tolerance)) << node;
    EXPECT_TRUE(at::allclose(run.gradient.cpu(), expected.gradient, tolerance, tolerance)) << node;
  };
  check(at::kBFloat16, false, "ScaledDotProductFlashAttentionBackward0");
  check(at::kBFloat16, true, "ScaledDotProductEfficientAttentionBackward0");
  check(at::kFloat, false, "ScaledDotProductEfficientAttentionBackward0");
  check(at::kFloat, true, "ScaledDotProductEfficientAttentionBackward0");
  const at::Tensor x = qkv[0].to(kCuda0);
  EXPECT_THROW(at::_scaled_dot_product_flash_attention(x, x, x, 0.5), c10::Error);
}

// A mode that sees every operator which this thread calls while it is on.
constexpr auto kSpyKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
int spied_operators = 0, spied_cpu_operators = 0;

void spy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  ++spied_operators;
  for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    // Numbers may be CPU tensors without dimensions.
    if (value.isTensor() && value.toTensor().is_cpu() && value.toTensor().dim() > 0) ++spied_cpu_operators;
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kSpyKey), stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&spy>());
}

TEST_F(DevicesOperators, KernelsAreOpaqueToDispatchModes) {
  const at::Tensor x = torch::ones({30, 4}, kCuda0);
  {
    const c10::impl::IncludeDispatchKeyGuard on(kSpyKey);
    (void)at::cdist(x, x);  // the CPU kernel calls many other operators
  }
  EXPECT_GT(spied_operators, 0);
  EXPECT_EQ(spied_cpu_operators, 0);
}

}  // namespace
}  // namespace penstock::test
