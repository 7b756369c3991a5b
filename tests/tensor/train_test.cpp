// What training needs of distributed tensors: second derivatives, optimizers, autocast, moves that are
// shared.
#include "ranks.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

namespace penstock::test {
namespace {

TEST(Autograd, SecondDerivativesAgree) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const AxisPlacement& cut :
         {AxisPlacement(Shard(0)), AxisPlacement(Shard(1)), AxisPlacement(Replicate())}) {
      const auto run = [&](const at::Tensor& x, const at::Tensor& w) {
        const at::Tensor y = x.matmul(w).tanh().pow(3).sum();
        const auto first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
        const at::Tensor z = first.pow(2).sum();
        return torch::autograd::grad({z}, {x, w});
      };
      const at::Tensor x = numbers({2, 4, 6}, 1).set_requires_grad(true),
                       w = numbers({6, 4}, 2).set_requires_grad(true);
      const auto want = run(x, w);
      const auto got = run(distribute_tensor(x, mesh, {Replicate()}), distribute_tensor(w, mesh, {cut}));
      for (int i = 0; i < 2; ++i)
        EXPECT_LT(difference(full_tensor(got[i]), want[i]), 1e-4 * want[i].abs().max().item<double>());
    }
  });
}

TEST(Autograd, ReadersOfOneTensorShareItsMove) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(numbers({4, 6}, 1), mesh, {Shard(0)}).set_requires_grad(true);
    const at::Tensor w = distribute_parameter(numbers({6, 6}, 2).set_requires_grad(true), mesh, {Shard(1)});
    const at::Tensor h = x * 2;
    traffic() = {};
    const at::Tensor y = h.mm(w) + h.mm(w) * h.mm(w);
    EXPECT_EQ(traffic().all_gathers, 1);
    EXPECT_EQ(traffic().calls(), 1);
    traffic() = {};
    y.sum().backward();
    EXPECT_EQ(traffic().reduce_scatters, 1);
    EXPECT_EQ(traffic().calls(), 1);
  });
}

template <class Optimizer, class Options>
void check_optimizer(const Options& options) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor x = numbers({8, 6}, 3);
    const auto train = [&](std::vector<at::Tensor> parameters) {
      Optimizer optimizer(parameters, options);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        (x.matmul(parameters[0]).tanh().matmul(parameters[1]) + parameters[2]).pow(2).mean().backward();
        torch::nn::utils::clip_grad_norm_(parameters, 0.5);
        optimizer.step();
      }
      return parameters;
    };
    std::vector<at::Tensor> dense, cut;
    const std::vector<AxisPlacement> places{Shard(1), Shard(0), Replicate()};
    const std::vector<std::vector<std::int64_t>> shapes{{6, 5}, {5, 3}, {3}};
    for (std::size_t i = 0; i < 3; ++i) {
      dense.push_back(numbers(shapes[i], static_cast<unsigned>(i)).set_requires_grad(true));
      cut.push_back(distribute_parameter(dense.back(), mesh, {places[i]}));
    }
    dense = train(dense);
    cut = train(cut);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_LT(difference(full_tensor(cut[i]).detach(), dense[i].detach()), 1e-5);
  });
}

TEST(Optimizers, StepDistributedParameters) {
  check_optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  check_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(1e-1).momentum(0.9));
}

TEST(Autocast, ComputesInTheLowerType) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const at::Tensor x = numbers({4, 6}, 1), w = numbers({6, 4}, 2);
    const at::Tensor a = distribute_tensor(x, mesh, {Replicate()}, false).set_requires_grad(true);
    const at::Tensor b = distribute_tensor(w, mesh, {Shard(1)}, false).set_requires_grad(true);
    const at::Tensor want = x.mm(w), got = a.mm(b);
    EXPECT_EQ(got.scalar_type(), at::kBFloat16);
    EXPECT_LT(difference(full_tensor(got).detach(), want), 1e-2);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    got.to(at::kFloat).sum().backward();
    EXPECT_EQ(b.grad().scalar_type(), at::kFloat);
  });
}

}  // namespace
}  // namespace penstock::test
