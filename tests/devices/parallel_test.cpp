// Data and tensor parallelism on simulated devices: the losses of the CPU, host syncs, shared devices.
#include "device_pipeline.h"
#include "support/error_message.h"
#include "support/mesh_ranks.h"
#include "support/models/mlp.h"
#include "support/models/small_gpt.h"

#include <penstock/base/error.h>
#include <penstock/parallel/ddp.h>
#include <penstock/parallel/input_reshard.h>
#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/parallel/sharded.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/runtime/recompute.h>

#include <torch/torch.h>

namespace penstock::test {
namespace {

class DevicesParallel : public SimulatedDeviceTest {};

// Trains on the rows of this rank. `step` runs a forward and a backward pass and returns the loss.
using RankTraining = std::function<std::vector<double>(comm::World&)>;

constexpr std::int64_t kRowsOfBatch = 8;

// The mean loss of each step over the ranks.
std::vector<double> losses_on(c10::DeviceType type, int ranks, const RankTraining& train) {
  std::vector<double> mean;
  std::mutex mutex;
  comm::run_thread_ranks(ranks,
                         [&](comm::World& world) {
                           const std::vector<double> losses = train(world);
                           const std::lock_guard lock(mutex);
                           mean.resize(losses.size(), 0);
                           for (std::size_t i = 0; i < losses.size(); ++i) mean[i] += losses[i] / ranks;
                         },
                         {.device = type});
  return mean;
}

void expect_losses_of_cpu(int ranks, const RankTraining& train) {
  const std::vector<double> expected = losses_on(c10::kCPU, ranks, train);
  ASSERT_GE(expected.size(), 3u);
  EXPECT_NE(expected.front(), expected.back());
  EXPECT_THAT(losses_on(c10::kCUDA, ranks, train), testing::Pointwise(testing::DoubleNear(1e-5), expected));
}

Tokens local_tokens(const comm::World& world, int step) {
  const Tokens rows = tokens_of(kRowsOfBatch, step).shard(world.rank().value, world.size());
  return {rows.inputs.to(world.device()), rows.targets.to(world.device())};
}

SmallGpt gpt_on(c10::Device device, Variant variant = Variant::Plain) {
  SmallGpt model(variant);
  model->to(device);
  return model;
}

TEST_F(DevicesParallel, ReplicatedModelGivesLossesOfCpu) {
  for (const Variant variant : {Variant::Plain, Variant::Tied}) {
    expect_losses_of_cpu(4, [&](comm::World& world) {
      SmallGpt model = gpt_on(world.device(), variant);
      parallel::DistributedDataParallel ddp(model, world.group(),
                                            {.bucket_bytes = 1000, .first_bucket_bytes = 100});
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      std::vector<double> losses;
      for (int step = 0; step < 4; ++step) {
        const Tokens rows = local_tokens(world, step);
        optimizer.zero_grad();
        const at::Tensor loss = loss_of(ddp(rows.inputs), rows.targets);
        loss.backward();
        losses.push_back(loss.item<double>());
        optimizer.step();
      }
      return losses;
    });
  }
}

TEST_F(DevicesParallel, ShardedModelGivesLossesOfCpu) {
  for (const int prefetch : {0, 1}) {
    expect_losses_of_cpu(4, [&](comm::World& world) {
      SmallGpt model = gpt_on(world.device());
      std::vector<std::shared_ptr<torch::nn::Module>> units;
      for (const auto& block : *model->blocks) units.push_back(block);
      parallel::Sharded sharded = parallel::fully_shard(model, world.group(), {.prefetch = prefetch}, units);
      torch::optim::AdamW optimizer = adamw(sharded.parameters());
      std::vector<double> losses;
      for (int step = 0; step < 4; ++step) {
        const Tokens rows = local_tokens(world, step);
        optimizer.zero_grad();
        const at::Tensor loss = loss_of(runtime::call(model, rows.inputs), rows.targets);
        loss.backward();
        sharded.clip_grad_norm(1);
        losses.push_back(loss.item<double>());
        optimizer.step();
      }
      return losses;
    });
  }
}

struct TwoHeads : torch::nn::Module {
  TwoHeads() {
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 4));
    for (at::Tensor& parameter : parameters()) torch::nn::init::constant_(parameter, 0.25);
  }
  at::Tensor forward(const at::Tensor& x, bool both) { return both ? first(x) + second(x) : first(x); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

// A parameter that only another rank uses gets its gradient.
TEST_F(DevicesParallel, UnusedParametersGetGradientsOfOthers) {
  comm::run_thread_ranks(
      2,
      [](comm::World& world) {
        const auto model = std::make_shared<TwoHeads>();
        model->to(world.device());
        parallel::DistributedDataParallel ddp(model, world.group());
        const bool both = world.rank().value == 1;
        ddp(torch::ones({2, 4}, world.device()), both).sum().backward();
        ASSERT_TRUE(model->second->weight.grad().defined());
        EXPECT_LT(difference(model->second->weight.grad().cpu(), torch::ones({4, 4})), 1e-6);
        model->zero_grad();
        ddp(torch::ones({2, 4}, world.device()), false).sum().backward();
        EXPECT_FALSE(model->second->weight.grad().defined());
      },
      {.device = c10::kCUDA});
}

// Neither buckets nor their flags make the host wait.
TEST_F(DevicesParallel, BackwardPassOfReplicaDoesNotWait) {
  comm::run_thread_ranks(2,
                         [](comm::World& world) {
                           SmallGpt model = gpt_on(world.device());
                           parallel::DistributedDataParallel ddp(
                               model, world.group(), {.bucket_bytes = 1000, .first_bucket_bytes = 100});
                           const Tokens rows = local_tokens(world, 0);
                           for (int step = 0; step < 2; ++step) {
                             world.group().barrier();
                             if (world.rank().value == 0) simulated::clear_records();
                             world.group().barrier();
                             loss_of(ddp(rows.inputs), rows.targets).backward();
                             world.group().barrier();
                             EXPECT_EQ(simulated::host_syncs().size(), 0u);
                             world.group().barrier();
                           }
                         },
                         {.device = c10::kCUDA});
}

TEST_F(DevicesParallel, TensorParallelModelGivesLossesOfCpu) {
  for (const bool recompute : {false, true}) {
    expect_losses_of_cpu(2, [&](comm::World& world) {
      const tensor::DeviceMesh mesh(world.group(), {2}, {"tp"});
      SmallGpt model = gpt_on(world.device());
      parallel::parallelize_module(
          *model, mesh,
          {{"blocks.*.up", parallel::ColwiseParallel()}, {"blocks.*.down", parallel::RowwiseParallel()}});
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      std::vector<double> losses;
      for (int step = 0; step < 4; ++step) {
        const Tokens batch = tokens_of(kRowsOfBatch, step);
        const Tokens rows{batch.inputs.to(world.device()), batch.targets.to(world.device())};
        optimizer.zero_grad();
        at::Tensor logits;
        if (recompute) {
          const auto forward = [&](const std::vector<at::Tensor>& inputs) {
            return std::vector<at::Tensor>{model(inputs[0])};
          };
          logits = runtime::recompute(forward, {rows.inputs})[0];
        } else {
          const parallel::InputReshard reshard(mesh);
          logits = model(rows.inputs);
        }
        at::Tensor loss = loss_of(logits, rows.targets);
        if (tensor::is_dtensor(loss)) loss = tensor::full_tensor(loss);
        loss.backward();
        losses.push_back(loss.item<double>());
        optimizer.step();
      }
      return losses;
    });
  }
}

// Two pipeline ranks and two replicas or shards, for schedules with full and split backward passes.
void expect_data_parallel_pipeline(schedule::ScheduleKind kind, bool sharded) {
  const schedule::ScheduleInfo& info = info_of(kind);
  PipelineRun run{.model = frozen_mlp(), .kind = kind};
  run.stages_per_rank = info.only_stages_per_rank.value_or(info.default_stages_per_rank);
  expect_losses_of_cpu(4, [&](comm::World& world) {
    const tensor::DeviceMesh mesh(world.group(), {2, 2}, {"pp", "dp"});
    const comm::Group& group = mesh.group("pp");
    runtime::PipelineOptions options = options_for(run.model, 2 * run.stages_per_rank);
    options.loss_on_all_ranks = true;
    std::vector<runtime::PipelineStage> stages;
    if (sharded) {
      const auto shards = std::make_shared<parallel::ShardedStages>(mesh.group("dp"));
      const auto modules = run.model.make(2 * run.stages_per_rank);
      const auto placement = schedule::Placement::make(2, 2 * run.stages_per_rank, info.placement);
      for (const StageId stage : placement.stages_of(Rank(group.rank()))) {
        modules[stage.index()]->to(world.device());
        stages.emplace_back(shards->add(stage, modules[stage.index()]), stage, 2 * run.stages_per_rank,
                            world.device(), group);
      }
      options.data_parallel = shards;
    } else {
      stages = stages_on(world.device(), run, group);
      options.data_parallel = std::make_shared<parallel::ReplicatedStages>(stages, mesh.group("dp"));
    }
    runtime::PipelineSchedule pipeline(stages, kind, 4, options);
    const TestBatch batch =
        batch_on(world.device(), replica_batch(run.model.batch(16), mesh.coordinate(1), 2));
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      losses.push_back(step_on(pipeline, batch).loss.item<double>());
      pipeline.clip_grad_norm(1);
      for (const runtime::PipelineStage& stage : pipeline.stages()) sgd_step(stage.module());
    }
    return losses;
  });
}

TEST_F(DevicesParallel, DataParallelPipelinesGiveLossesOfCpu) {
  using schedule::ScheduleKind;
  for (const ScheduleKind kind :
       {ScheduleKind::OneFOneB, ScheduleKind::ZBVZeroBubble, ScheduleKind::DualPipeV}) {
    for (const bool sharded : {false, true}) {
      SCOPED_TRACE(std::string(to_string(kind)) + (sharded ? ", sharded" : ", replicated"));
      expect_data_parallel_pipeline(kind, sharded);
    }
  }
}

ResidualMlp tensor_parallel_layer(const tensor::DeviceMesh& mesh, c10::Device device, unsigned seed) {
  ResidualMlp layer(6);
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : layer->parameters())
      parameter.copy_(numbers(parameter.sizes(), ++seed) * 0.4);
  }
  parallel::parallelize_module(*layer, mesh,
                               {{"up", parallel::ColwiseParallel()}, {"down", parallel::RowwiseParallel()}});
  layer->to(device);  // moves the shards
  return layer;
}

// Stages exchange distributed tensors.
TEST_F(DevicesParallel, TensorParallelPipelinesGiveLossesOfCpu) {
  for (const std::string name : {"1F1B", "ZBVZeroBubble"}) {
    const int per_rank = name == "1F1B" ? 1 : 2, count = 2 * per_rank;
    expect_losses_of_cpu(4, [&](comm::World& world) {
      const tensor::DeviceMesh mesh(world.group(), {2, 2}, {"pp", "tp"});
      const int rank = static_cast<int>(mesh.coordinate(0));
      std::vector<int> local{rank};
      if (per_rank == 2) local.push_back(3 - rank);
      std::vector<runtime::PipelineStage> stages;
      for (const int stage : local) {
        const ResidualMlp layer =
            tensor_parallel_layer(mesh["tp"], world.device(), static_cast<unsigned>(stage * 10));
        stages.emplace_back(layer, StageId(stage), count, world.device(), mesh.group("pp"));
      }
      runtime::PipelineOptions options;
      options.loss_on_all_ranks = true;
      options.loss = runtime::tensor_loss([](const at::Tensor& a, const at::Tensor& b) {
        return at::mse_loss(tensor::is_dtensor(a) ? tensor::full_tensor(a) : a, b);
      });
      runtime::PipelineSchedule pipeline(stages, name, 4, options);
      std::vector<double> losses;
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = numbers({8, 3, 6}, 100).to(world.device());
        losses.push_back(pipeline.step({x}, numbers({8, 3, 6}, 101).to(world.device())).loss.item<double>());
        pipeline.clip_grad_norm(1);
        for (const runtime::PipelineStage& stage : pipeline.stages()) sgd_step(stage.module());
      }
      return losses;
    });
  }
}

TEST_F(DevicesParallel, RefusesThreadRanksThatShareDevice) {
  const auto errors = comm::try_thread_ranks(2,
                                             [](comm::World& world) {
                                               SmallGpt model = gpt_on(kCuda1);
                                               const parallel::Sharded sharded =
                                                   parallel::fully_shard(model, world.group(), {}, {});
                                             },
                                             {.device = kCuda1});
  for (const std::exception_ptr& error : errors)
    EXPECT_THAT(
        error_message<UsageError>([&] { std::rethrow_exception(error); }),
        testing::AllOf(testing::HasSubstr("ranks 0 and 1 are threads of one process and share a device"),
                       testing::HasSubstr("InitOptions::device")));
}

}  // namespace
}  // namespace penstock::test
