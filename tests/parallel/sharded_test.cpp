// Sharded data parallelism compared with a dense run, and its other guarantees: traffic, memory, ranges,
// recovery.
#include "parallel/sharded_run.h"
#include "support/check.h"
#include "support/error_message.h"
#include "support/models/mlp.h"
#include "support/process_ranks.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/graph/capture.h>
#include <penstock/parallel/sharded.h>
#include <penstock/runtime/recompute.h>

#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <utility>

namespace penstock::test {
namespace {

struct TwoOutputsImpl : torch::nn::Module {
  TwoOutputsImpl() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(3, 4));
    second = register_module("second", torch::nn::Linear(3, 2));
  }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {first(x), second(x)}; }

  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoOutputs);

// The backward gathers the parameters again only if the hooks see every tensor of the result.
TEST(ParallelShardedModel, ModelMayReturnPair) {
  const at::Tensor x = torch::linspace(-1, 1, 6).view({2, 3});
  const auto loss_of_pair = [](const std::pair<at::Tensor, at::Tensor>& both) {
    return both.first.square().sum() + both.second.exp().sum();
  };
  TwoOutputs dense;
  loss_of_pair(dense->forward(x)).backward();
  comm::run_thread_ranks(2, [&](comm::World& world) {
    TwoOutputs model{nullptr};
    {
      static std::mutex seeding;  // the default generator belongs to all threads
      const std::lock_guard lock(seeding);
      model = TwoOutputs();
    }
    parallel::Sharded sharded = parallel::fully_shard(model, world.group());
    loss_of_pair(runtime::call(model, x)).backward();
    expect_near("gradient of", sharded.gather_gradients(), gradient_copies(*dense));
  });
}

TEST(ParallelShardedModel, MatchesDenseRun) {
  for (const Variant variant : {Variant::Plain, Variant::Tied, Variant::Frozen}) {
    for (const int parts : {1, 2}) {
      const DenseGpt dense = run_dense_gpt(variant, parts);
      for (const int ranks : {1, 2, 4}) {
        for (const bool reshard : {true, false}) {
          parallel::ShardOptions options;
          options.reshard_after_forward = reshard;
          options.prefetch = reshard ? 1 : 0;
          ASSERT_NO_THROW(comm::run_thread_ranks(ranks,
                                                 [&](comm::World& world) {
                                                   expect_dense(world, world.group(), options, variant, dense,
                                                                parts);
                                                 }))
              << text(variant) << " on " << ranks << " ranks";
        }
      }
    }
  }
}

TEST(ParallelShardedModel, HybridShardsWithinAndReplicatesAcrossGroups) {
  const DenseGpt dense = run_dense_gpt(Variant::Plain, 2);
  for (const ParameterStorage storage : kShardedStorages) {
    comm::run_thread_ranks(4, [&](comm::World& world) {
      const int rank = world.rank().value;
      const comm::Group inside = *world.group().split(rank / 2, rank);
      parallel::ShardOptions options;
      options.storage = storage;
      options.replicas = world.group().split(rank % 2, rank);
      expect_dense(world, inside, options, Variant::Plain, dense, 2);
    });
  }
}

const RankFunction gloo_ranks("sharded", [] {
  comm::World world = comm::init();
  for (const Variant variant : {Variant::Plain, Variant::Tied, Variant::Frozen})
    for (const ParameterStorage storage : kShardedStorages)
      expect_dense(world, world.group(), {.storage = storage}, variant, run_dense_gpt(variant, 2), 2);
  return 0;
});

TEST(ParallelShardedModel, MatchesDenseRunOverGlooProcesses) {
  const RanksOutcome outcome = run_process_ranks("sharded", 2);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
}

TEST(ParallelShardedModel, SendsExpectedBytesPerUnit) {
  constexpr int layers = 3, ranks = 4;
  for (const bool reshard : {true, false}) {
    comm::run_thread_ranks(ranks, [&](comm::World& world) {
      SmallGpt model(Variant::Plain, layers);
      const auto padded = [](std::int64_t n) { return (n + ranks - 1) / ranks * ranks; };
      const std::int64_t block = padded(elements_of(model->blocks[0]->parameters()));
      const std::int64_t root =
          padded(elements_of(model->parameters()) - layers * elements_of(model->blocks[0]->parameters()));
      parallel::ShardOptions options;
      options.reshard_after_forward = reshard;
      parallel::Sharded sharded = fully_shard(model, world.group(), options, blocks_of(model));
      for (int step = 0; step < 2; ++step) {
        const Traffic traffic(world);
        const Tokens own = tokens_of(kGptRows, step).shard(world.rank().value, ranks);
        loss_of(runtime::call(model, own.inputs), own.targets).backward();
        // Each unit is gathered for its forward, and again for its backward, except the last one, which stays
        // gathered, and the root.
        const int gathers = layers + (reshard ? layers - 1 : 0);
        CHECK_SAME(traffic.of("all_gather").count, gathers + 1);
        CHECK_SAME(traffic.of("all_gather").bytes, static_cast<std::uint64_t>(4 * (gathers * block + root)));
        CHECK_SAME(traffic.of("reduce_scatter").count, layers + 1);
        CHECK_SAME(traffic.of("reduce_scatter").bytes,
                   static_cast<std::uint64_t>(4 * (layers * block + root)));
        CHECK_SAME(traffic.of("all_reduce").count, 0);
      }
    });
  }
}

TEST(ParallelShardedModel, ShardsCoverEveryParameterOnce) {
  comm::run_thread_ranks(4, [](comm::World& world) {
    SmallGpt model, dense;
    parallel::Sharded sharded = parallel::fully_shard(model, world.group(), {}, blocks_of(model));
    const auto shards = sharded.shards();
    const auto names = copies(*dense);
    CHECK_SAME(shards.size(), names.size());
    std::int64_t mine = 0, all = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      CHECK_SAME(shards[i].name, names[i].name);
      CHECK_THAT(shards[i].shape == names[i].tensor.sizes().vec());
      CHECK_SAME(shards[i].shard.numel(), shards[i].end - shards[i].begin);
      CHECK_TENSORS(shards[i].shard.detach(),
                    names[i].tensor.flatten().slice(0, shards[i].begin, shards[i].end));
      const at::Tensor ranges = at::tensor({shards[i].begin, shards[i].end}, at::kLong);
      std::vector<std::int64_t> cover(static_cast<std::size_t>(names[i].tensor.numel()), 0);
      for (const at::Tensor& range : world.group().all_gather(ranges)) {
        for (auto e = range[0].item<std::int64_t>(); e < range[1].item<std::int64_t>(); ++e)
          ++cover[static_cast<std::size_t>(e)];
      }
      CHECK_THAT(std::all_of(cover.begin(), cover.end(), [](std::int64_t n) { return n == 1; }));
      mine += shards[i].shard.numel();
      all += names[i].tensor.numel();
    }
    CHECK_THAT(mine <= all / 4 + 3);  // three units, each rounded up
    CHECK_SAME(elements_of(sharded.parameters()), mine);
  });
}

TEST(ParallelShardedModel, KeepsAtMostAllowedUnitsUnsharded) {
  for (const int prefetch : {0, 1, 2}) {
    comm::run_thread_ranks(2, [&](comm::World& world) {
      SmallGpt model(Variant::Plain, 5);
      parallel::ShardOptions options;
      options.prefetch = prefetch;
      parallel::Sharded sharded = fully_shard(model, world.group(), options, blocks_of(model));
      // Checks memory rather than names: the storage of a gathered unit has the size of its full parameters.
      const auto gathered_units = [&] {
        int count = 0;
        for (const auto& block : *model->blocks) count += block->parameters()[0].numel() > 0;
        return count;
      };
      int most = 0;
      for (const auto& block : *model->blocks) {
        at::Tensor weight = block->as<GptBlockImpl>()->down->weight;
        weight.register_hook([&](const at::Tensor&) { most = std::max(most, gathered_units()); });
      }
      const Tokens own = tokens_of(kGptRows, 0).shard(world.rank().value, 2);
      const at::Tensor loss = loss_of(runtime::call(model, own.inputs), own.targets);
      CHECK_SAME(gathered_units(), 1);  // the last
      loss.backward();
      CHECK_SAME(most, 1);  // the next ones are in flight, not yet gathered
      CHECK_SAME(gathered_units(), 0);
    });
  }
}

TEST(ParallelShardedModel, ComputesInBfloat16WithFloat32Shards) {
  const DenseGpt dense = run_dense_gpt(Variant::Plain);
  for (const ParameterStorage storage : kShardedStorages) {
    comm::run_thread_ranks(2, [&](comm::World& world) {
      SmallGpt model;
      parallel::ShardOptions options;
      options.storage = storage;
      options.compute_as = at::kBFloat16;
      options.reduce_as = at::kFloat;
      parallel::Sharded sharded = fully_shard(model, world.group(), options, blocks_of(model));
      const Tokens own = tokens_of(kGptRows, 0).shard(world.rank().value, 2);
      const Traffic traffic(world);
      const at::Tensor logits = runtime::call(model, own.inputs);
      CHECK_THAT(logits.scalar_type() == at::kBFloat16);
      const at::Tensor loss = loss_of(logits.to(at::kFloat), own.targets);
      loss.backward();
      expect_near("loss", mean_of(world, loss), dense.losses[0], 2e-2);
      expect_near("gradient of", sharded.gather_gradients(), dense.gradients, 2e-2);
      for (const at::Tensor& shard : sharded.parameters()) {
        CHECK_THAT(shard.scalar_type() == at::kFloat);
        CHECK_THAT(shard.grad().scalar_type() == at::kFloat);
      }
    });
  }
}

// Corresponds to FSDP2's MixedPrecisionPolicy(param_dtype, output_dtype, cast_forward_inputs); compared with
// the layer itself in bfloat16.
TEST(ParallelShardedModel, CastsInputsAndOutputs) {
  torch::manual_seed(3);
  const torch::nn::Linear first(5, 3);
  const at::Tensor x = torch::randn({4, 5}), ids = torch::arange(4);
  const at::Tensor weight = first->weight.detach().to(at::kBFloat16).set_requires_grad(true),
                   bias = first->bias.detach().to(at::kBFloat16).set_requires_grad(true);
  const at::Tensor want = at::linear(x.to(at::kBFloat16), weight, bias);
  want.to(at::kFloat).sum().backward();
  comm::run_thread_ranks(2, [&](comm::World& world) {
    for (const bool output : {false, true}) {
      const torch::nn::Linear layer(std::dynamic_pointer_cast<torch::nn::LinearImpl>(first->clone()));
      parallel::ShardOptions options;
      options.compute_as = at::kBFloat16;
      if (output) options.output_as = at::kFloat;
      parallel::Sharded sharded = fully_shard(layer, world.group(), options);
      const at::Tensor y = runtime::call(layer, x);
      CHECK_THAT(y.scalar_type() == (output ? at::kFloat : at::kBFloat16));
      CHECK_THAT(at::equal(y.to(at::kBFloat16), want));
      y.to(at::kFloat).sum().backward();
      for (const value::NamedTensor& item : sharded.gather_gradients())
        CHECK_THAT(at::equal(item.tensor, (item.name == "weight" ? weight : bias).grad().to(at::kFloat)));
    }
    const torch::nn::Linear layer(std::dynamic_pointer_cast<torch::nn::LinearImpl>(first->clone()));
    parallel::ShardOptions options;
    options.compute_as = at::kBFloat16;
    options.cast_inputs = false;
    parallel::Sharded sharded = fully_shard(layer, world.group(), options);
    EXPECT_THROW(runtime::call(layer, x), c10::Error);
    CHECK_THAT(runtime::call(layer, x.to(at::kBFloat16)).scalar_type() == at::kBFloat16);
  });
}

TEST(ParallelShardedModel, CanKeepParametersUnsharded) {
  const DenseGpt dense = run_dense_gpt(Variant::Tied);
  comm::run_thread_ranks(2, [&](comm::World& world) {
    parallel::ShardOptions options;
    options.storage = parallel::ParameterStorage::Copy;
    expect_dense(world, world.group(), options, Variant::Tied, dense, 1);
    // Computes in another dtype, while the optimizer sees the dtype of the model.
    SmallGpt model(Variant::Tied, 2, world.rank().value == 0 ? 1 : 99);
    options.compute_as = at::kBFloat16;
    options.reduce_as = at::kFloat;
    parallel::Sharded sharded = fully_shard(model, world.group(), options, blocks_of(model));
    const Tokens own = tokens_of(kGptRows, 0).shard(world.rank().value, 2);
    const at::Tensor logits = runtime::call(model, own.inputs);
    CHECK_THAT(logits.scalar_type() == at::kBFloat16);
    const at::Tensor loss = loss_of(logits.to(at::kFloat), own.targets);
    loss.backward();
    expect_near("loss", mean_of(world, loss), dense.losses[0], 2e-2);
    expect_near("gradient of", sharded.gather_gradients(), dense.gradients, 2e-2);
    for (const parallel::ShardedParameter& item : sharded.shards()) {
      CHECK_THAT(item.shard.scalar_type() == at::kFloat);
      CHECK_SAME(item.end - item.begin, item.shard.numel());
    }
    options.replicas = world.group();
    SmallGpt another(Variant::Plain);
    EXPECT_ERROR(const auto refused = fully_shard(another, world.group(), options), UsageError,
                 "`replicas` must not be set");
  });
}

TEST(ParallelShardedModel, ClipsByGlobalNorm) {
  SmallGpt dense;
  const Tokens all = tokens_of(kGptRows, 0);
  loss_of(dense(all.inputs), all.targets).backward();
  const double norm = torch::nn::utils::clip_grad_norm_(dense->parameters(), 0.1);
  comm::run_thread_ranks(4, [&](comm::World& world) {
    SmallGpt model;
    parallel::Sharded sharded = parallel::fully_shard(model, world.group(), {}, blocks_of(model));
    const Tokens own = all.shard(world.rank().value, 4);
    loss_of(runtime::call(model, own.inputs), own.targets).backward();
    CHECK_THAT(std::abs(sharded.clip_grad_norm(0.1) - norm) < 1e-5);
    expect_near("gradient of", sharded.gather_gradients(), gradient_copies(*dense));
    CHECK_THAT(std::abs(sharded.clip_grad_norm(1e9) - 0.1) < 1e-5);
  });
}

// Two layers; each call uses the requested ones.
struct TwoImpl : torch::nn::Module {
  TwoImpl() {
    a = register_module("a", torch::nn::Linear(3, 3));
    b = register_module("b", torch::nn::Linear(3, 3));
    c = register_module("c", torch::nn::Linear(3, 3));
  }
  at::Tensor forward(at::Tensor x, bool use_b) {
    x = runtime::call(a, x);
    return use_b ? runtime::call(b, x) : x;
  }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
};
TORCH_MODULE(Two);

TEST(ParallelShardedModel, UnusedParametersHaveNoGradientOnRequest) {
  for (const bool find : {false, true}) {
    comm::run_thread_ranks(2, [&](comm::World& world) {
      Two model;
      parallel::ShardOptions options;
      options.find_unused = find;
      parallel::Sharded sharded =
          fully_shard(model, world.group(), options);  // units must be used by every rank
      // `b` is used by the loss of rank 1 only, `c` nowhere.
      const at::Tensor x = runtime::call(model, torch::ones({1, 3}), true);
      const at::Tensor own = runtime::call(model, torch::ones({1, 3}), false);
      (world.rank().value == 1 ? x : own).sum().backward();
      const auto gradients = sharded.gather_gradients();
      CHECK_SAME(gradients[5].name, "c.bias");
      CHECK_SAME(gradients[5].tensor.defined(), !find);
      CHECK_SAME(gradients[3].name, "b.bias");
      expect_near("b.bias", gradients[3].tensor, torch::full({3}, 0.5));
      for (const parallel::ShardedParameter& item : sharded.shards()) {
        if (item.name.starts_with("c.") && find) CHECK_THAT(!item.shard.grad().defined());
      }
    });
  }
}

// A model that no rank could hold: created on the meta device, sharded, then filled as from a checkpoint.
TEST(ParallelShardedModel, MetaParametersAreFilledThroughShards) {
  TwoLayerMlp dense;
  const at::Tensor x = at::rand({6, 5});
  dense(x).square().mean().backward();
  std::map<std::string, at::Tensor> values;
  for (const auto& item : dense->named_parameters()) values[item.key()] = item.value().detach().flatten();
  comm::run_thread_ranks(3, [&](comm::World& world) {
    TwoLayerMlp model{nullptr};
    {
      const graph::MetaDeviceScope meta_scope;
      model = TwoLayerMlp();
    }
    CHECK_THAT(model->first->weight.is_meta());
    parallel::Sharded sharded =
        parallel::fully_shard(model, world.group(), {}, {model->first.ptr(), model->second.ptr()});
    {
      const at::NoGradGuard no_grad;
      for (const parallel::ShardedParameter& item : sharded.shards())
        item.shard.copy_(values.at(item.name).slice(0, item.begin, item.end));
    }
    runtime::call(model, x).square().mean().backward();
    expect_near("parameter", sharded.gather_parameters(), copies(*dense));
    expect_near("gradient of", sharded.gather_gradients(), gradient_copies(*dense));
  });
}

TEST(ParallelShardedModel, FailureLeavesNoState) {
  SmallGpt dense;
  const Tokens all = tokens_of(kGptRows, 0);
  loss_of(dense(all.inputs), all.targets).backward();
  for (const ParameterStorage storage : kShardedStorages) {
    comm::run_thread_ranks(2, [&](comm::World& world) {
      SmallGpt model;
      parallel::Sharded sharded =
          parallel::fully_shard(model, world.group(), {.storage = storage}, blocks_of(model));
      const Tokens own = all.shard(world.rank().value, 2);
      const auto throws = [](const std::function<void()>& body) {
        try {
          body();
        } catch (const std::exception&) {
          return true;
        }
        return false;
      };
      // Fails in the forward (an invalid token), then in the backward, after the blocks have been reduced.
      CHECK_THAT(throws([&] { runtime::call(model, own.inputs + kVocabulary); }));
      const at::Tensor loss = loss_of(runtime::call(model, own.inputs), own.targets);
      const auto handle = model->position.register_hook(
          [](const at::Tensor&) { throw std::runtime_error("broken on purpose"); });
      CHECK_THAT(throws([&] { loss.backward(); }));
      model->position.remove_hook(handle);
      for (const at::Tensor& parameter : model->parameters())
        CHECK_THAT(storage != ParameterStorage::Shard || parameter.numel() == 0);
      for (const at::Tensor& shard : sharded.parameters()) CHECK_THAT(!shard.grad().defined());
      loss_of(runtime::call(model, own.inputs), own.targets).backward();
      expect_near("gradient of", sharded.gather_gradients(), gradient_copies(*dense));
    });
  }
}

TEST(ParallelShardedModel, EvaluatesWithLatestParameters) {
  comm::run_thread_ranks(2, [](comm::World& world) {
    SmallGpt model, dense;
    parallel::Sharded sharded = parallel::fully_shard(model, world.group(), {}, blocks_of(model));
    const Tokens batch = tokens_of(4, 0);
    runtime::call(model, batch.inputs);  // with a graph but no backward: the root stays gathered
    const torch::NoGradGuard no_grad;
    for (const parallel::ShardedParameter& item : sharded.shards()) item.shard.mul_(0.5);
    for (at::Tensor& parameter : dense->parameters()) parameter.mul_(0.5);
    CHECK_TENSORS(runtime::call(model, batch.inputs), dense(batch.inputs));
    for (const at::Tensor& parameter : model->parameters()) CHECK_SAME(parameter.numel(), 0);
  });
}

TEST(ParallelShardedModel, RestartIsBitwiseEqual) {
  const auto train = [](comm::World& world, int from, int to, const std::vector<value::NamedTensor>& start) {
    SmallGpt model;
    {
      const torch::NoGradGuard no_grad;
      for (const value::NamedTensor& item : start) model->named_parameters()[item.name].copy_(item.tensor);
    }
    parallel::Sharded sharded = parallel::fully_shard(model, world.group(), {}, blocks_of(model));
    for (int step = from; step < to; ++step) {
      const Tokens own = tokens_of(kGptRows, step).shard(world.rank().value, world.size());
      loss_of(runtime::call(model, own.inputs), own.targets).backward();
      torch::optim::SGD optimizer(sharded.parameters(), 0.1);
      optimizer.step();
      optimizer.zero_grad();
    }
    return sharded.gather_parameters();
  };
  comm::run_thread_ranks(4, [&](comm::World& world) {
    const auto at_once = train(world, 0, 4, {});
    const auto restarted = train(world, 2, 4, train(world, 0, 2, {}));
    for (std::size_t i = 0; i < at_once.size(); ++i) CHECK_TENSORS(restarted[i].tensor, at_once[i].tensor);
  });
}

}  // namespace
}  // namespace penstock::test
