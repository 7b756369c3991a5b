// Replicated data parallelism compared with a dense run, and its other guarantees: traffic, fixed layout,
// unused parameters, recovery.
#include "parallel/dense_gpt.h"
#include "parallel/replicate/buckets.h"
#include "support/check.h"
#include "support/process_ranks.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/parallel/ddp.h>
#include <penstock/runtime/recompute.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace penstock::test {
namespace {

// Many buckets even for a small model.
parallel::ReplicateOptions small_buckets() {
  parallel::ReplicateOptions options;
  options.first_bucket_bytes = 100;
  options.bucket_bytes = 1000;
  return options;
}

std::uint64_t gradient_bytes(const torch::nn::Module& module, std::size_t of_each = 4) {
  std::set<void*> seen;
  std::uint64_t bytes = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    bytes += (static_cast<std::uint64_t>(parameter.numel()) + 1) *
             of_each;  // one element marks the gradient as present
  }
  return bytes;
}

// Trains like the dense run, on the rows of this rank, and compares.
void expect_dense(comm::World& world, Variant variant, const DenseGpt& dense, int parts) {
  SmallGpt model(variant, 2,
                 world.rank().value == 0 ? 1 : 99);  // all ranks but the first start with other values
  parallel::DistributedDataParallel ddp(model, world.group(),
                                        {.bucket_bytes = 1000, .first_bucket_bytes = 100});
  torch::optim::AdamW optimizer = adamw(unique_parameters(*model));
  for (int step = 0; step < kGptSteps; ++step) {
    const Tokens batch = tokens_of(kGptRows, step).shard(world.rank().value, world.size());
    optimizer.zero_grad();
    at::Tensor sum = at::zeros({});
    const Traffic traffic(world);
    for (int part = 0; part < parts; ++part) {
      const Tokens own = batch.shard(part, parts);
      const auto backward = [&] {
        const at::Tensor loss = loss_of(ddp(own.inputs), own.targets) / parts;
        loss.backward();
        sum += loss.detach();
      };
      if (part + 1 < parts) {
        const auto no_sync = ddp.no_sync();
        backward();
        CHECK_SAME(traffic.of("all_reduce").count, 0);
      } else {
        backward();
      }
    }
    if (world.size() > 1) {
      CHECK_SAME(traffic.of("all_reduce").count, static_cast<int>(ddp.replica().buckets().size()));
      CHECK_SAME(traffic.of("all_reduce").bytes, gradient_bytes(*model));
      CHECK_SAME(traffic.of("broadcast").count, 0);
    }
    world.group().all_reduce(sum, comm::ReduceOp::Avg);
    const std::string when = std::string(text(variant)) + ", step " + std::to_string(step) + ": ";
    expect_near(when + "loss", sum, dense.losses[static_cast<std::size_t>(step)]);
    if (step == 0) expect_near(when + "gradient of", gradient_copies(*model), dense.gradients);
    optimizer.step();
  }
  expect_near(std::string(text(variant)) + ": at the end", copies(*model), dense.parameters);
}

TEST(ParallelReplicated, MatchesDenseRun) {
  for (const Variant variant : {Variant::Plain, Variant::Tied, Variant::Frozen}) {
    for (const int parts : {1, 2}) {
      const DenseGpt dense = run_dense_gpt(variant, parts);
      for (const int ranks : {1, 2, 4})
        ASSERT_NO_THROW(comm::run_thread_ranks(
            ranks, [&](comm::World& world) { expect_dense(world, variant, dense, parts); }))
            << text(variant) << " on " << ranks << " ranks";
    }
  }
}

const RankFunction gloo_ranks("replicated", [] {
  comm::World world = comm::init();
  for (const Variant variant : {Variant::Plain, Variant::Tied, Variant::Frozen})
    expect_dense(world, variant, run_dense_gpt(variant, 2), 2);
  return 0;
});

TEST(ParallelReplicated, MatchesDenseRunOverGlooProcesses) {
  const RanksOutcome outcome = run_process_ranks("replicated", 2);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
}

TEST(ParallelReplicated, GradientsAreBitwiseMeanOfLocalGradients) {
  // A sum of two terms has only one order, so the results must be bitwise equal.
  SmallGpt own[2] = {SmallGpt(), SmallGpt()};
  std::vector<std::vector<value::NamedTensor>> gradients;
  for (int rank = 0; rank < 2; ++rank) {
    const Tokens batch = tokens_of(kGptRows, 0).shard(rank, 2);
    loss_of(own[rank](batch.inputs), batch.targets).backward();
    gradients.push_back(gradient_copies(*own[rank]));
  }
  comm::run_thread_ranks(2, [&](comm::World& world) {
    SmallGpt model;
    parallel::Replica replica = replicate(model, world.group(), small_buckets());
    const Tokens batch = tokens_of(kGptRows, 0).shard(world.rank().value, 2);
    loss_of(model(batch.inputs), batch.targets).backward();
    const auto mine = gradient_copies(*model);
    for (std::size_t i = 0; i < mine.size(); ++i)
      CHECK_TENSORS(mine[i].tensor, gradients[0][i].tensor / 2 + gradients[1][i].tensor / 2);
  });
}

TEST(ParallelReplicated, RestartIsBitwiseEqual) {
  const auto train = [](comm::World& world, int from, int to, SmallGpt model) {
    parallel::Replica replica = replicate(model, world.group(), small_buckets());
    for (int step = from; step < to; ++step) {
      const Tokens batch = tokens_of(kGptRows, step).shard(world.rank().value, world.size());
      loss_of(model(batch.inputs), batch.targets).backward();
      torch::optim::SGD(model->parameters(), 0.1).step();
      model->zero_grad();
    }
    return copies(*model);
  };
  comm::run_thread_ranks(4, [&](comm::World& world) {
    const auto at_once = train(world, 0, 4, SmallGpt());
    SmallGpt restored(Variant::Plain, 2, 77);
    const auto halfway = train(world, 0, 2, SmallGpt());
    {
      const torch::NoGradGuard no_grad;
      for (const value::NamedTensor& item : halfway)
        restored->named_parameters()[item.name].copy_(item.tensor);
    }
    const auto restarted = train(world, 2, 4, restored);
    for (std::size_t i = 0; i < at_once.size(); ++i) CHECK_TENSORS(restarted[i].tensor, at_once[i].tensor);
  });
}

// Three layers; each call uses the requested ones.
struct Choice : torch::nn::Module {
  Choice() {
    for (int i = 0; i < 3; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(3, 3)));
  }
  at::Tensor forward(at::Tensor x, const std::vector<int>& used) {
    for (const int i : used) x = layers[static_cast<std::size_t>(i)](x);
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

TEST(ParallelReplicated, UnusedParametersGetNoGradient) {
  for (const bool find : {false, true}) {
    comm::run_thread_ranks(2, [&](comm::World& world) {
      torch::manual_seed(0);
      parallel::DdpOptions options;
      options.first_bucket_bytes = options.bucket_bytes = 1;  // one bucket per parameter
      options.find_unused = find;
      const auto module = std::make_shared<Choice>();
      parallel::DistributedDataParallel ddp(module, world.group(), options);
      const int rank = world.rank().value;
      // Layer 0 is used on both ranks, layer 1 on rank 1 only, layer 2 on none.
      const auto backward = [&] {
        ddp(torch::ones({1, 3}), rank == 0 ? std::vector{0} : std::vector{0, 1}).sum().backward();
      };
      backward();
      CHECK_THAT(!module->layers[2]->weight.grad().defined() && !module->layers[2]->bias.grad().defined());
      // The derivative of the sum with respect to bias1 is 1 on rank 1 and 0 on rank 0.
      CHECK_TENSORS(module->layers[1]->bias.grad(), torch::full({3}, 0.5));
      expect_near("bias 0", module->layers[0]->bias.grad(), (1 + module->layers[1]->weight.sum(0)) / 2);
      // The next step may use other layers, and a gradient that only some ranks had before is kept.
      ddp(torch::ones({1, 3}), std::vector{2}).sum().backward();
      CHECK_TENSORS(module->layers[2]->bias.grad(), torch::ones({3}));
      CHECK_TENSORS(module->layers[1]->bias.grad(), torch::full({3}, 0.5));
      module->zero_grad(false);
      backward();
      CHECK_TENSORS(module->layers[1]->bias.grad(), torch::full({3}, 0.5));
    });
  }
}

TEST(ParallelReplicated, DetectedUnusedParametersDoNotBlockOthers) {
  // Layer 2 is in the first bucket. If it is known to be unused, its bucket is already in flight when the
  // first gradient is computed.
  comm::run_thread_ranks(2, [&](comm::World& world) {
    parallel::DdpOptions options;
    options.first_bucket_bytes = options.bucket_bytes = 1;
    options.find_unused = true;
    const auto module = std::make_shared<Choice>();
    parallel::DistributedDataParallel ddp(module, world.group(), options);
    const Traffic traffic(world);
    int sent_at_layer0 = -1;
    module->layers[0]->bias.register_hook(
        [&](const at::Tensor&) { sent_at_layer0 = traffic.of("all_reduce").count; });
    ddp(torch::ones({1, 3}), std::vector{0, 1}).sum().backward();
    CHECK_THAT(sent_at_layer0 >= 3);  // both of layer 2, and at least one of layer 1
    CHECK_SAME(traffic.of("all_reduce").count, 6);
  });
}

TEST(ParallelReplicated, AccumulatesOverSeveralBackwards) {
  comm::run_thread_ranks(2, [&](comm::World& world) {
    SmallGpt model, dense;
    parallel::Replica replica = replicate(model, world.group(), small_buckets());
    for (int step = 0; step < 2; ++step) {
      const Tokens all = tokens_of(kGptRows, step), own = all.shard(world.rank().value, 2);
      loss_of(model(own.inputs), own.targets).backward();
      loss_of(dense(all.inputs), all.targets).backward();
    }
    expect_near("gradient of", gradient_copies(*model), gradient_copies(*dense));
  });
}

TEST(ParallelReplicated, ReducesInBfloat16OnRequest) {
  comm::run_thread_ranks(2, [&](comm::World& world) {
    SmallGpt model, dense;
    parallel::ReplicateOptions options = small_buckets();
    options.communicate_as = at::kBFloat16;
    parallel::Replica replica = replicate(model, world.group(), options);
    const Traffic traffic(world);
    const Tokens all = tokens_of(kGptRows, 0), own = all.shard(world.rank().value, 2);
    loss_of(model(own.inputs), own.targets).backward();
    CHECK_SAME(traffic.of("all_reduce").bytes, gradient_bytes(*model, 2));
    loss_of(dense(all.inputs), all.targets).backward();
    expect_near("gradient of", gradient_copies(*model), gradient_copies(*dense), 1e-2);
    CHECK_THAT(model->position.grad().scalar_type() == at::kFloat);
  });
}

TEST(ParallelReplicated, ReducesGradientsOfRecomputedModules) {
  // Recomputation runs a backward inside the backward; the end of the inner one must not end the outer one.
  struct Net : torch::nn::Module {
    Net() {
      first = register_module("first", torch::nn::Linear(3, 3));
      second = register_module("second", torch::nn::Linear(3, 3));
      third = register_module("third", torch::nn::Linear(3, 3));
    }
    at::Tensor forward(at::Tensor x) {
      x = torch::tanh(first(x));
      x = runtime::recompute(
          [this](const std::vector<at::Tensor>& in) { return std::vector{torch::tanh(second(in[0]))}; },
          {x})[0];
      return third(x);
    }
    torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  };
  comm::run_thread_ranks(2, [&](comm::World& world) {
    torch::manual_seed(0);
    Net model, dense;
    parallel::Replica replica = replicate(model, world.group(), small_buckets());
    {
      const torch::NoGradGuard no_grad;
      for (const auto& item : model.named_parameters())
        dense.named_parameters()[item.key()].copy_(item.value());
    }
    const at::Tensor x = torch::arange(12.0).view({4, 3}) / 10;
    model.forward(x.chunk(2)[world.rank().index()]).square().mean().backward();
    dense.forward(x).square().mean().backward();
    expect_near("gradient of", gradient_copies(model), gradient_copies(dense));
  });
}

TEST(ParallelReplicated, FailedBackwardLeavesNoState) {
  comm::run_thread_ranks(2, [&](comm::World& world) {
    SmallGpt model, dense;
    parallel::Replica replica = replicate(model, world.group(), small_buckets());
    const Tokens all = tokens_of(kGptRows, 0), own = all.shard(world.rank().value, 2);
    const at::Tensor loss = loss_of(model(own.inputs), own.targets);
    bool thrown = false;
    const auto handle = model->position.register_hook(
        [](const at::Tensor&) { throw std::runtime_error("broken on purpose"); });
    try {
      loss.backward();
    } catch (const std::exception&) {
      thrown = true;
    }
    CHECK_THAT(thrown);
    model->position.remove_hook(handle);
    model->zero_grad();
    loss_of(model(own.inputs), own.targets).backward();
    loss_of(dense(all.inputs), all.targets).backward();
    expect_near("gradient of", gradient_copies(*model), gradient_copies(*dense));
  });
}

TEST(ParallelReplicated, RejectsDifferentModelsOnEveryRank) {
  const auto errors = comm::try_thread_ranks(3, [](comm::World& world) {
    const parallel::Replica replica =
        parallel::replicate(torch::nn::Linear(4, world.rank().value == 2 ? 5 : 4), world.group());
  });
  for (const auto& error : errors) {
    try {
      ASSERT_TRUE(error);
      std::rethrow_exception(error);
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("[4, 4]"));
      EXPECT_THAT(e.what(), ::testing::HasSubstr("rank 2 has parameter 'weight' of Float[5, 4]"));
    }
  }
}

TEST(ParallelReplicated, BroadcastsBuffersFromFirstRank) {
  comm::run_thread_ranks(2, [](comm::World& world) {
    parallel::DistributedDataParallel ddp(torch::nn::BatchNorm1d(3).ptr(), world.group());
    const float rank = static_cast<float>(world.rank().value);
    ddp->running_mean.fill_(rank);
    const at::Tensor x = torch::tensor({{1.0F, 2.0F, 3.0F}, {3.0F, 4.0F, 5.0F}}) * (rank + 1);
    ddp(x).sum().backward();
    // The mean of the first rank (0), moved one tenth of the way to the batch of this rank.
    expect_near("running mean", ddp->running_mean, x.mean(0) * 0.1);
    ddp.module()->eval();
    ddp->running_mean.fill_(rank);
    ddp(x);
    CHECK_TENSORS(ddp->running_mean, torch::full({3}, rank));  // evaluation does not broadcast
  });
}

TEST(ParallelBuckets, AreFilledFromLastToFirstParameter) {
  const auto f = [](std::int64_t n) { return at::zeros({n}); };
  const auto d = [](std::int64_t n) { return at::zeros({n}, at::kDouble); };
  // Sizes in bytes: 40, 80, 20 (double: 16), 400, 8.
  const std::vector<at::Tensor> parameters{f(10), f(20), d(2), f(5), f(100), f(2)};
  std::vector<std::vector<std::size_t>> found;
  for (const parallel::BucketPlan& plan : parallel::plan_buckets(parameters, 8, 100))
    found.push_back(plan.members);
  const std::vector<std::vector<std::size_t>> expected{{5}, {4}, {2}, {3, 1}, {0}};
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace penstock::test
