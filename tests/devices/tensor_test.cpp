// Distributed tensors on simulated devices.
#include "simulated_device_test.h"
#include "support/mesh_ranks.h"
#include "tensor/norm_sum.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/parallel/loss_parallel.h>
#include <penstock/runtime/random.h>
#include <penstock/tensor/dtensor.h>
#include <penstock/tensor/grad_norm.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

namespace penstock::test {
namespace {

using tensor::Placements;
using tensor::Replicate;
using tensor::Shard;

class DevicesTensor : public SimulatedDeviceTest {
 protected:
  //! Runs `body` on two ranks, each with its device and a mesh of both.
  static void on_two_devices(const std::function<void(const tensor::DeviceMesh&, c10::Device)>& body) {
    comm::run_thread_ranks(
        2, [&](comm::World& world) { body(tensor::DeviceMesh(world.group(), {2}, {"tp"}), world.device()); },
        {.device = c10::kCUDA});
  }
};

TEST_F(DevicesTensor, ProductsAndGradientsEqualThoseOfCpu) {
  const at::Tensor x = numbers({6, 8}, 1), w = numbers({8, 10}, 2);
  at::Tensor w_cpu = w.clone().requires_grad_();
  const at::Tensor expected = x.matmul(w_cpu).tanh().sum(0);
  expected.square().sum().backward();
  on_two_devices([&](const tensor::DeviceMesh& mesh, c10::Device device) {
    const at::Tensor input = tensor::distribute_tensor(x.to(device), mesh, {Replicate()});
    at::Tensor weight = tensor::distribute_tensor(w.to(device), mesh, {Shard(1)}).requires_grad_();
    tensor::reset_traffic();
    const at::Tensor result = input.matmul(weight).tanh().sum(0);
    EXPECT_EQ(result.device(), device);
    tensor::redistribute(result, {Replicate()}).square().sum().backward();
    EXPECT_GT(tensor::traffic().calls(), 0);
    EXPECT_LT(difference(full_copy(result).cpu(), expected.detach()), 1e-5);
    EXPECT_LT(difference(full_copy(weight.grad()).cpu(), w_cpu.grad()), 1e-5);
  });
}

// The backward pass redistributes on a thread of autograd.
TEST_F(DevicesTensor, TrafficCountsBackwardPasses) {
  on_two_devices([&](const tensor::DeviceMesh& mesh, c10::Device device) {
    at::Tensor x =
        tensor::distribute_tensor(numbers({4, 4}, 1).to(device), mesh, {Shard(0)}).requires_grad_();
    const at::Tensor y = tensor::redistribute(x, {Replicate()});
    tensor::reset_traffic();
    (y * tensor::distribute_tensor(numbers({4, 4}, 2).to(device), mesh, {Shard(1)})).sum().backward();
    EXPECT_GT(tensor::traffic().calls(), 0);
    tensor::reset_traffic();
    EXPECT_EQ(tensor::traffic().calls(), 0);
  });
}

TEST_F(DevicesTensor, AutocastIsThatOfDevice) {
  on_two_devices([&](const tensor::DeviceMesh& mesh, c10::Device device) {
    const at::Tensor x = tensor::distribute_tensor(numbers({4, 4}, 1).to(device), mesh, {Shard(0)});
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    const at::Tensor product = x.matmul(x.t());
    const at::Tensor norm = at::layer_norm(product, {4});
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    at::autocast::clear_cache();
    EXPECT_EQ(product.scalar_type(), at::kBFloat16);
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    EXPECT_EQ(x.matmul(x.t()).scalar_type(), at::kFloat);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  });
}

TEST_F(DevicesTensor, RandomNumbersEqualThoseOfCpu) {
  at::Tensor expected;
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const tensor::DeviceMesh mesh(world.group(), {2}, {"tp"});
    const at::Tensor values = full_copy(tensor::distributed_randn({5, 3}, mesh, {Shard(0)}));
    if (world.rank().value == 0) expected = values;
  });
  on_two_devices([&](const tensor::DeviceMesh& mesh, c10::Device device) {
    const at::Tensor drawn = tensor::distributed_randn({5, 3}, mesh, {Shard(1)}, at::kFloat, device);
    EXPECT_EQ(drawn.device(), device);
    EXPECT_TRUE(at::equal(full_copy(drawn).cpu(), expected));
  });
}

// Dropout depends on the key of the scope and on the element, not on the placements; a second scope repeats
// it.
TEST_F(DevicesTensor, DropoutRepeatsInScopeWithSameKey) {
  on_two_devices([&](const tensor::DeviceMesh& mesh, c10::Device device) {
    const at::Tensor ones = torch::ones({8, 8}, device);
    const auto dropped = [&](std::uint64_t seed, const Placements& placements) {
      const runtime::RandomScope scope({.seed = seed, .stage = StageId(0), .microbatch = MicrobatchId(0)});
      const at::Tensor x = tensor::distribute_tensor(ones, mesh, placements).requires_grad_();
      const at::Tensor first = at::dropout(x, 0.5, true), second = at::dropout(x, 0.5, true);
      (first + second).sum().backward();
      EXPECT_FALSE(at::equal(full_copy(first), full_copy(second)));
      EXPECT_TRUE(at::equal(full_copy(x.grad()), full_copy(first + second)));
      return full_copy(first + second).cpu();
    };
    const at::Tensor expected = dropped(5, {Shard(0)});
    EXPECT_TRUE(at::equal(dropped(5, {Shard(1)}), expected));
    EXPECT_TRUE(at::equal(dropped(5, {Replicate()}), expected));
    EXPECT_FALSE(at::equal(dropped(6, {Shard(0)}), expected));
  });
}

at::Tensor attention_loss(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true).square().sum();
}

// Flash attention for 16-bit types, efficient attention for float32: neither gathers heads.
TEST_F(DevicesTensor, FusedAttentionStaysShardedByHeads) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> full;
    for (unsigned i = 0; i < 3; ++i) full.push_back(numbers({2, 4, 6, 8}, i).to(dtype).requires_grad_());
    const at::Tensor expected = attention_loss(full[0], full[1], full[2]);
    expected.backward();
    on_two_devices([&](const tensor::DeviceMesh& mesh, c10::Device device) {
      std::vector<at::Tensor> sharded;
      for (const at::Tensor& tensor : full)
        sharded.push_back(
            tensor::distribute_tensor(tensor.detach().to(device), mesh, {Shard(1)}).requires_grad_());
      tensor::reset_traffic();
      const at::Tensor loss = attention_loss(sharded[0], sharded[1], sharded[2]);
      loss.backward();
      EXPECT_EQ(tensor::traffic().all_gathers, 0);
      const double tolerance = dtype == at::kFloat ? 1e-4 : 0.5;
      EXPECT_NEAR(full_copy(loss).item<double>(), expected.item<double>(), tolerance);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(tensor::placements_of(sharded[i].grad()) == Placements{Shard(1)});
        EXPECT_LT(difference(full_copy(sharded[i].grad()).cpu(), full[i].grad()), tolerance);
      }
    });
  }
}

// A hook runs on the thread of autograd.
TEST_F(DevicesTensor, LossParallelHoldsInBackwardPasses) {
  on_two_devices([&](const tensor::DeviceMesh& mesh, c10::Device device) {
    const at::Tensor logits = numbers({4, 6}, 3).to(device);
    const at::Tensor sharded = tensor::distribute_tensor(logits, mesh, {Replicate()});
    at::Tensor leaf = torch::ones({1}, at::device(device).requires_grad(true));
    std::string message = "no error";
    const at::Tensor result = leaf * 2;
    result.register_hook([&](const at::Tensor&) {
      try {
        at::log_softmax(sharded, 1);
      } catch (const UsageError& error) {
        message = error.what();
      }
    });
    {
      const parallel::LossParallel mode;
      result.sum().backward();
    }
    EXPECT_THAT(message, testing::HasSubstr("not sharded along the class dim"));
    at::log_softmax(sharded, 1);
  });
}

TEST_F(DevicesTensor, NormOfManyGradientsWaitsOnce) {
  on_two_devices([&](const tensor::DeviceMesh& mesh, c10::Device device) {
    std::vector<at::Tensor> parameters;
    double expected = 0;
    for (unsigned i = 0; i < 6; ++i) {
      const at::Tensor value = numbers({4, 3}, i);
      expected += value.square().sum().item<double>();
      at::Tensor parameter =
          i % 2 == 0 ? value.to(device) : tensor::distribute_tensor(value.to(device), mesh, {Shard(0)});
      parameter.requires_grad_();
      parameter.mutable_grad() = parameter.detach().clone();
      parameters.push_back(parameter);
    }
    mesh.group(0).barrier();
    if (device.index() == 0) simulated::clear_records();
    mesh.group(0).barrier();
    const double norm = tensor::clip_grad_norm(parameters, 1e-3);
    std::size_t waits = 0;
    for (const simulated::HostSync& sync : simulated::host_syncs())
      waits += sync.device == device.index() ? 1 : 0;
    EXPECT_EQ(waits, 1u);
    EXPECT_NEAR(norm, std::sqrt(expected), 1e-5);
    EXPECT_NEAR(tensor::clip_grad_norm(parameters, 1), 1e-3, 1e-5);
  });
}

}  // namespace
}  // namespace penstock::test
