// What each rank of a sharded model stores: parameters may stay gathered, gradients replicated.
#include "parallel/sharded_run.h"

#include <penstock/comm/thread_ranks.h>

#include <gtest/gtest.h>

#include <map>

namespace penstock::test {
namespace {

TEST(ParallelShardedStorage, MatchesDenseRun) {
  for (const Variant variant : {Variant::Plain, Variant::Tied, Variant::Frozen}) {
    const DenseGpt dense = run_dense_gpt(variant, 2);
    for (const ParameterStorage storage :
         {ParameterStorage::ShardGradients, ParameterStorage::ShardOptimizer}) {
      for (const int ranks : {1, 2, 4}) {
        ASSERT_NO_THROW(comm::run_thread_ranks(ranks,
                                               [&](comm::World& world) {
                                                 expect_dense(world, world.group(), {.storage = storage},
                                                              variant, dense, 2);
                                               }))
            << text(variant) << " on " << ranks << " ranks";
      }
    }
  }
}

// The bytes of the different memories behind the tensors.
std::uint64_t stored_bytes(const std::vector<at::Tensor>& tensors) {
  std::map<const void*, std::uint64_t> storages;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) storages[tensor.storage().unsafeGetStorageImpl()] = tensor.storage().nbytes();
  std::uint64_t bytes = 0;
  for (const auto& [storage, size] : storages) bytes += size;
  return bytes;
}

// Bytes per element of the model, with float32 and AdamW on four ranks.
TEST(ParallelShardedStorage, HoldsOnlyShardsOfWhatIsSharded) {
  struct Expected {
    ParameterStorage storage;
    double parameters, gradients, states;
  };
  for (const Expected& expected :
       {Expected{ParameterStorage::Shard, 1, 1, 2}, Expected{ParameterStorage::ShardGradients, 4, 1, 2},
        Expected{ParameterStorage::ShardOptimizer, 4, 4, 2}}) {
    comm::run_thread_ranks(4, [&](comm::World& world) {
      SmallGpt model;
      const auto elements = static_cast<double>(elements_of(model->parameters()));
      parallel::Sharded sharded =
          parallel::fully_shard(model, world.group(), {.storage = expected.storage}, blocks_of(model));
      torch::optim::AdamW optimizer = adamw(sharded.parameters());
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        const Tokens own = tokens_of(kGptRows, step).shard(world.rank().value, 4);
        loss_of(runtime::call(model, own.inputs), own.targets).backward();
        optimizer.step();
      }
      std::vector<at::Tensor> parameters = model->parameters(), gradients, states;
      for (const at::Tensor& shard : sharded.parameters()) {
        parameters.push_back(shard);
        gradients.push_back(shard.grad());
      }
      for (const auto& [key, state] : optimizer.state()) {
        const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*state);
        states.insert(states.end(), {moments.exp_avg(), moments.exp_avg_sq()});
      }
      const auto check = [&](const std::vector<at::Tensor>& tensors, double bytes) {
        const double stored = static_cast<double>(stored_bytes(tensors)) / elements;
        CHECK_THAT(stored > 0.9 * bytes && stored < 1.02 * bytes);  // shards are padded
      };
      check(parameters, expected.parameters);
      check(gradients, expected.gradients);
      check(states, expected.states);
    });
  }
}

torch::nn::Linear small_layer() {
  torch::nn::Linear layer(3, 4);
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : layer->parameters())
    parameter.copy_(torch::linspace(-1, 1, parameter.numel()).view_as(parameter));
  return layer;
}

template <class Call>
void train_layer(torch::nn::Linear& layer, const std::vector<at::Tensor>& parameters, const Call& call) {
  for (int step = 0; step < 3; ++step) {
    call(layer).square().sum().backward();
    const torch::NoGradGuard no_grad;
    for (at::Tensor parameter : parameters) {
      parameter.sub_(parameter.grad(), 0.1);
      parameter.mutable_grad() = at::Tensor();
    }
  }
}

// A rank whose shard is empty sees no update, but must take part in the gather.
TEST(ParallelShardedStorage, RanksWithoutElementsGatherParameters) {
  const at::Tensor x = torch::linspace(-1, 1, 6).view({2, 3});
  torch::nn::Linear dense = small_layer();
  train_layer(dense, dense->parameters(), [&](torch::nn::Linear& layer) { return layer->forward(x); });
  for (const ParameterStorage storage : kShardedStorages) {
    comm::run_thread_ranks(7, [&](comm::World& world) {
      torch::nn::Linear layer = small_layer();
      parallel::Sharded sharded = parallel::fully_shard(layer, world.group(), {.storage = storage});
      CHECK_SAME(sharded.parameters().empty(), world.rank().value == 6);
      train_layer(layer, sharded.parameters(),
                  [&](torch::nn::Linear& called) { return runtime::call(called, x); });
      expect_near("parameter", sharded.gather_parameters(), copies(*dense));
    });
  }
}

// A layer in bfloat16 with a frozen bias. Only the weight, which is trained, is stored in float32, too.
TEST(ParallelShardedStorage, KeepsMasterWeightsOfTrainedParameters) {
  const at::Tensor x = torch::linspace(-1, 1, 6).view({2, 3}).to(at::kBFloat16);
  const auto bfloat16_layer = [] {
    torch::nn::Linear layer = small_layer();
    layer->to(at::kBFloat16);
    layer->bias.set_requires_grad(false);
    return layer;
  };
  const auto train_step = [&](torch::nn::Linear& layer) {
    runtime::call(layer, x).to(at::kFloat).square().sum().backward();
  };
  torch::nn::Linear dense = bfloat16_layer();
  const at::Tensor master = dense->weight.detach().to(at::kFloat);
  for (int step = 0; step < 5; ++step) {
    train_step(dense);
    master.sub_(dense->weight.grad().to(at::kFloat), 0.001);
    dense->weight.detach().copy_(master);
    dense->weight.mutable_grad() = at::Tensor();
  }
  for (const ParameterStorage storage : {ParameterStorage::Shard, ParameterStorage::ShardGradients,
                                         ParameterStorage::ShardOptimizer, ParameterStorage::Copy}) {
    comm::run_thread_ranks(2, [&](comm::World& world) {
      torch::nn::Linear layer = bfloat16_layer();
      parallel::Sharded sharded =
          parallel::fully_shard(layer, world.group(), {.storage = storage, .store_as = at::kFloat});
      torch::optim::SGD optimizer(sharded.parameters(), 0.001);
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        train_step(layer);
        CHECK_THAT(layer->weight.scalar_type() == at::kBFloat16);
        optimizer.step();
      }
      for (const value::NamedTensor& item : sharded.gather_parameters())
        CHECK_THAT(at::equal(item.tensor, item.name == "weight" ? master : dense->bias));
      sharded.unshard();
      CHECK_THAT(at::equal(layer->weight, dense->weight));
      std::vector<at::Tensor> tensors = layer->parameters();
      for (const parallel::ShardedParameter& item : sharded.shards()) tensors.push_back(item.shard);
      if (storage == ParameterStorage::Copy) CHECK_SAME(stored_bytes(tensors), std::uint64_t{12 * (2 + 4) + 4 * 2});
    });
  }
}

// All parameters are gathered once per reduction.
TEST(ParallelShardedStorage, GathersParametersOncePerReduction) {
  for (const ParameterStorage storage :
       {ParameterStorage::ShardGradients, ParameterStorage::ShardOptimizer}) {
    comm::run_thread_ranks(4, [&](comm::World& world) {
      SmallGpt model;
      parallel::Sharded sharded =
          parallel::fully_shard(model, world.group(), {.storage = storage}, blocks_of(model));
      const int units = static_cast<int>(blocks_of(model).size()) + 1;
      torch::optim::SGD optimizer(sharded.parameters(), 0.1);
      for (int step = 0; step < 2; ++step) {
        const Traffic traffic(world);
        const Tokens own = tokens_of(kGptRows, step).shard(world.rank().value, 4);
        const auto backward = [&] { loss_of(runtime::call(model, own.inputs), own.targets).backward(); };
        {
          const auto no_sync = sharded.no_sync();
          backward();
        }
        backward();
        CHECK_SAME(traffic.of("all_gather").count, units);
        const bool scatters = storage == ParameterStorage::ShardGradients;
        CHECK_SAME(traffic.of("reduce_scatter").count, scatters ? units : 0);
        CHECK_SAME(traffic.of("all_reduce").count, scatters ? 0 : units);
        optimizer.step();
      }
    });
  }
}

}  // namespace
}  // namespace penstock::test
