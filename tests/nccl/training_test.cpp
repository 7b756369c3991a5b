// The trainer over NCCL, on devices of the fake CUDA runtime: the losses of the same run on CPUs over Gloo,
// for every schedule and every kind of parallelism.
#include "nccl/ranks.h"
#include "support/check.h"
#include "train/small_run.h"

#include <penstock/schedule/generate.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iomanip>
#include <iostream>
#include <sstream>

namespace penstock::test {
namespace {

using train::RunOptions;
using train::Sharding;

//! The runs of one test, by name.
using Runs = std::vector<std::pair<std::string, Topology>>;

Runs every_schedule() {
  Runs runs;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    if (!info.has_backward) continue;
    const int per_rank = info.only_stages_per_rank.value_or(info.default_stages_per_rank);
    runs.emplace_back(info.name, Topology{4, 1, per_rank, 8, info.name.data()});
  }
  return runs;
}

Runs data_parallel() {
  return {{"replicas", {1, 4, 1, 2, "1F1B"}},
          {"shards", {1, 4, 1, 2, "1F1B", Sharding::Full}},
          {"pipelines", {2, 2, 1, 2, "ZB1P"}},
          {"sharded pipelines", {2, 2, 2, 4, "ZBVZeroBubble", Sharding::Full}}};
}

Runs tensor_parallel() {
  return {{"tensor parallel", {1, 1, 1, 2, "1F1B", Sharding::None, 4}},
          {"pipelines", {2, 1, 1, 2, "ZB1P", Sharding::None, 2}},
          {"replicas", {1, 2, 1, 2, "1F1B", Sharding::None, 2}},
          {"shards", {1, 2, 1, 2, "1F1B", Sharding::Full, 2}}};
}

Runs three_axes() {
  return {{"replicas", {2, 2, 1, 2, "1F1B", Sharding::None, 2}},
          {"shards", {2, 2, 2, 4, "ZBVZeroBubble", Sharding::Full, 2}}};
}

//! Prints the name and the losses of each run on rank 0.
int train_all(comm::World& world, const Runs& runs) {
  at::set_num_threads(1);
  // Fused attention has a kernel of its own on CUDA, which the host cannot run.
  at::globalContext().setSDPUseFlash(false);
  at::globalContext().setSDPUseMemEfficient(false);
  at::globalContext().setSDPUseCuDNN(false);
  const train::Vocabulary vocabulary(small_text());
  const models::GptOptions gpt{
      .vocabulary = vocabulary.size(), .context = 12, .layers = 8, .heads = 4, .width = 16};
  for (const auto& [name, topology] : runs) {
    RunOptions options = with(topology);
    options.steps = 3;
    options.grad_clip = 0.5;
    const auto data =
        train::text_data(small_text(), vocabulary, {.length = gpt.context, .seed = options.seed});
    const auto model = train::gpt_model(gpt, options.seed);
    const train::RunResult result = train::run(world, *model, *data, options);
    if (world.rank().value != 0) continue;
    std::cout << "losses of " << name << ":" << std::setprecision(17);
    for (const double loss : result.losses) std::cout << " " << loss;
    std::cout << std::endl;
  }
  return 0;
}

int train_over_nccl(const Runs& runs) {
  comm::World world = init_on_device();
  return train_all(world, runs);
}

int train_over_gloo(const Runs& runs) {
  comm::World world = comm::init({.backend = comm::BackendKind::Gloo});
  return train_all(world, runs);
}

const RankFunction nccl_schedules("nccl_schedules", [] { return train_over_nccl(every_schedule()); });
const RankFunction gloo_schedules("gloo_schedules", [] { return train_over_gloo(every_schedule()); });
const RankFunction nccl_data("nccl_data", [] { return train_over_nccl(data_parallel()); });
const RankFunction gloo_data("gloo_data", [] { return train_over_gloo(data_parallel()); });
const RankFunction nccl_tensor("nccl_tensor", [] { return train_over_nccl(tensor_parallel()); });
const RankFunction gloo_tensor("gloo_tensor", [] { return train_over_gloo(tensor_parallel()); });
const RankFunction nccl_three_axes("nccl_three_axes", [] { return train_over_nccl(three_axes()); });
const RankFunction gloo_three_axes("gloo_three_axes", [] { return train_over_gloo(three_axes()); });

//! The losses that rank 0 printed, by the name of the run.
std::map<std::string, std::vector<double>> printed_losses(const RanksOutcome& outcome) {
  const std::string before = "losses of ";
  std::map<std::string, std::vector<double>> all;
  for (const std::string& line : outcome.lines[0]) {
    if (!line.starts_with(before)) continue;
    const std::size_t colon = line.find(':');
    std::istringstream text(line.substr(colon + 1));
    std::vector<double>& losses = all[line.substr(before.size(), colon - before.size())];
    for (double loss = 0; text >> loss;) losses.push_back(loss);
  }
  return all;
}

void expect_losses_of_gloo(const std::string& what, const Runs& runs, int ranks) {
  RanksOptions options;
  options.deadline = std::chrono::minutes(4);
  const RanksOutcome gloo = run_process_ranks("gloo_" + what, ranks, options);
  ASSERT_TRUE(gloo.result.ok) << gloo.text();
  const RanksOutcome nccl = run_fake_cuda_ranks("nccl_" + what, ranks, options);
  ASSERT_TRUE(nccl.result.ok) << nccl.text();
  auto expected = printed_losses(gloo), losses = printed_losses(nccl);
  for (const auto& [name, topology] : runs) {
    EXPECT_EQ(expected[name].size(), 3U) << name;
    EXPECT_THAT(losses[name], testing::Pointwise(testing::DoubleNear(1e-6), expected[name])) << name;
  }
}

TEST(NcclTraining, EveryScheduleGivesLossesOfGloo) {
  expect_losses_of_gloo("schedules", every_schedule(), 4);
}

TEST(NcclTraining, DataParallelRunsGiveLossesOfGloo) {
  expect_losses_of_gloo("data", data_parallel(), 4);
}

TEST(NcclTraining, TensorParallelRunsGiveLossesOfGloo) {
  expect_losses_of_gloo("tensor", tensor_parallel(), 4);
}

TEST(NcclTraining, ThreeAxesGiveLossesOfGloo) {
  expect_losses_of_gloo("three_axes", three_axes(), 8);
}

}  // namespace
}  // namespace penstock::test
