// Training on simulated devices: the losses of the CPU, autograd's device threads, autocast.
#include "simulated_device_test.h"
#include "support/same_bits.h"

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <barrier>
#include <functional>
#include <memory>
#include <thread>

namespace penstock::test {
namespace {

class DevicesTraining : public SimulatedDeviceTest {};

struct AttentionClassifier : torch::nn::Module {
  explicit AttentionClassifier(double dropout)
      : embedding(register_module("embedding", torch::nn::Embedding(11, 16))),
        qkv(register_module("qkv", torch::nn::Linear(16, 48))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        head(register_module("head", torch::nn::Linear(16, 11))) {}

  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = embedding(ids);
    const auto parts = qkv(x).view({ids.size(0), ids.size(1), 3, 2, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
    return head(drop(norm(x + mixed.transpose(1, 2).reshape(x.sizes()))));
  }

  torch::nn::Embedding embedding;
  torch::nn::Linear qkv;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout drop;
  torch::nn::Linear head;
};

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>& parameters)>;

std::unique_ptr<torch::optim::Optimizer> make_sgd(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.3).momentum(0.9));
}
std::unique_ptr<torch::optim::Optimizer> make_adamw(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.02));
}

std::vector<double> losses_of_run(c10::Device device, const MakeOptimizer& make_optimizer, double dropout = 0,
                                  int steps = 5) {
  torch::manual_seed(7);
  const at::Tensor ids = torch::randint(11, {4, 6}), targets = ids.roll(1, 1);
  AttentionClassifier model(dropout);
  model.to(device);
  const auto optimizer = make_optimizer(model.parameters());
  const at::Tensor input = ids.to(device), expected = targets.to(device).flatten();
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(model.forward(input).flatten(0, 1), expected);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0);
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST_F(DevicesTraining, GivesLossesOfCpu) {
  for (const MakeOptimizer& make_optimizer : {MakeOptimizer(make_sgd), MakeOptimizer(make_adamw)}) {
    const std::vector<double> expected = losses_of_run(c10::kCPU, make_optimizer);
    const std::vector<double> losses = losses_of_run(kCuda1, make_optimizer);
    EXPECT_LT(expected.back(), 0.7 * expected.front());
    EXPECT_THAT(losses, testing::Pointwise(testing::DoubleNear(1e-5), expected));
  }
}

TEST_F(DevicesTraining, RepeatsDropoutWithSeed) {
  const std::vector<double> first = losses_of_run(kCuda0, make_sgd, 0.2);
  EXPECT_EQ(losses_of_run(kCuda0, make_sgd, 0.2), first);
  EXPECT_NE(losses_of_run(kCuda0, make_sgd, 0), first);
}

struct ThreadProbe : torch::autograd::Function<ThreadProbe> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    thread = std::this_thread::get_id();
    return gradients;
  }
  static inline std::thread::id thread;
};

TEST_F(DevicesTraining, BackwardRunsOnThreadOfDevice) {
  const auto thread_of_backward = [](c10::Device device) {
    const at::Tensor x = torch::ones({3}, at::device(device).requires_grad(true));
    ThreadProbe::apply(x).sum().backward();
    EXPECT_TRUE(same_bits(x.grad().cpu(), torch::ones({3})));
    return ThreadProbe::thread;
  };
  EXPECT_EQ(thread_of_backward(c10::kCPU), std::this_thread::get_id());
  const std::thread::id first = thread_of_backward(kCuda0), second = thread_of_backward(kCuda1);
  EXPECT_NE(first, std::this_thread::get_id());
  EXPECT_NE(second, std::this_thread::get_id());
  EXPECT_NE(first, second);
  EXPECT_EQ(thread_of_backward(kCuda0), first);
}

TEST_F(DevicesTraining, BackwardFollowsStreamOfForward) {
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Stream main = guard.getStream(kCuda0), side = guard.getNewStream(kCuda0);
  const at::Tensor weight = torch::full({3}, 2.F, at::device(kCuda0).requires_grad(true));
  c10::Event ready(c10::kCUDA);
  ready.record(main);
  ready.block(side);
  at::Tensor loss;
  {
    const c10::StreamGuard on_side(side);
    loss = weight.square().sum();
  }
  // Autograd runs on `side`, and lets the caller's stream wait for the gradients.
  c10::Event computed(c10::kCUDA);
  computed.record(side);
  computed.block(main);
  loss.backward();
  EXPECT_TRUE(same_bits(weight.grad().mul(1).cpu(), torch::full({3}, 4.F)));
}

TEST_F(DevicesTraining, AutocastLowersProductsOnly) {
  const at::Tensor x = torch::ones({4, 4}, kCuda0);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  const at::Tensor product = x.matmul(x), loss = product.log_softmax(1);
  const at::Tensor on_cpu = torch::ones({2, 2}).matmul(torch::ones({2, 2}));
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  at::autocast::clear_cache();
  EXPECT_EQ(product.scalar_type(), at::kBFloat16);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(on_cpu.scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(product.to(at::kFloat).cpu(), torch::full({4, 4}, 4.F)));
}

at::Tensor accumulated_gradient(const at::Tensor& weight, const at::Tensor& rows) {
  for (int repeat = 0; repeat < 20; ++repeat) rows.matmul(weight).square().mean().backward();
  return weight.grad().cpu();
}

TEST_F(DevicesTraining, ThreadsWorkOnDeviceEach) {
  torch::manual_seed(7);
  const at::Tensor weight = torch::randn({8, 5}), rows = torch::randn({6, 8});
  std::vector<at::Tensor> gradients(4);
  std::vector<std::thread> threads;
  std::barrier all_have_device(4);
  for (c10::DeviceIndex rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const c10::DeviceGuard guard(c10::Device(c10::kCUDA, rank));
      all_have_device.arrive_and_wait();
      const at::Tensor own = weight.to(at::kCUDA).requires_grad_();
      EXPECT_EQ(own.device().index(), rank);
      gradients[static_cast<std::size_t>(rank)] = accumulated_gradient(own, rows.to(at::kCUDA));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const at::Tensor expected = accumulated_gradient(weight.clone().requires_grad_(), rows);
  for (const at::Tensor& gradient : gradients) EXPECT_TRUE(at::allclose(gradient, expected, 1e-5, 1e-7));
}

}  // namespace
}  // namespace penstock::test
