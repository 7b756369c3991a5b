// Memory of a step: no more received values than microbatches in flight, and reused buffers.
#include "runtime/transfer/buffer_pool.h"
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/stage_profile.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace penstock::test {
namespace {

TEST(RuntimeBufferPool, ReusesBufferOnceReleased) {
  runtime::BufferPool pool;
  const value::TensorMeta meta = value::TensorMeta::of(at::ones({4, 8}));
  at::Tensor first = pool.take(meta, at::kCPU);
  const void* const memory = first.data_ptr();
  const at::Tensor second = pool.take(meta, at::kCPU);
  EXPECT_NE(second.data_ptr(), memory);
  at::Tensor alias = first.detach();  // an autograd graph would keep it like this
  first = at::Tensor();
  EXPECT_NE(pool.take(meta, at::kCPU).data_ptr(), memory);
  alias = at::Tensor();
  EXPECT_EQ(pool.take(meta, at::kCPU).data_ptr(), memory);
  EXPECT_EQ(pool.bytes(), 3 * meta.nbytes());
  pool.trim();
  EXPECT_EQ(pool.bytes(), 3 * meta.nbytes());  // used since the last call
  pool.trim();
  EXPECT_EQ(pool.bytes(), 0U);
}

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// The maximum number of inputs of the last stage that are alive when one of its forward passes runs.
int most_inputs_alive(schedule::ScheduleKind kind, int microbatches, int& promised) {
  int most = 0;
  comm::run_thread_ranks(2, [&](comm::World& world) {
    const PipelineModel model = mlp();
    auto module = model.make(2)[world.rank().index()];
    std::vector<WeakTensor> seen;
    if (world.rank().value == 1) {
      module = runtime::make_stage_module(
          nullptr, [&seen, &most, inner = module](const value::Args& args, const value::Kwargs& kwargs) {
            seen.emplace_back(args[0].toTensor().getIntrusivePtr());
            int alive = 0;
            for (const WeakTensor& input : seen) alive += input.expired() ? 0 : 1;
            most = std::max(most, alive);
            return inner->forward(args, kwargs);
          });
    }
    const runtime::PipelineStage stage(module, StageId(world.rank().value), 2, at::kCPU, world.group());
    runtime::PipelineSchedule pipeline({stage}, kind, microbatches, options_for(model, 2));
    for (int step = 0; step < 2; ++step) step_on(pipeline, model.batch(microbatches));
    if (world.rank().value == 1) promised = pipeline.program().peak_in_flight(StageId(1));
  });
  return most;
}

TEST(RuntimeStep, KeepsOnlyInputsOfMicrobatchesInFlight) {
  int promised = 0;
  EXPECT_EQ(most_inputs_alive(schedule::ScheduleKind::OneFOneB, 8, promised), 1);
  EXPECT_EQ(promised, 1);
  EXPECT_EQ(most_inputs_alive(schedule::ScheduleKind::GPipe, 8, promised), 8);
  EXPECT_EQ(promised, 8);
}

// The backward of a linear layer needs its input and weight, but not its output: once the output is sent,
// only the gradient edge is kept. The backward of a microbatch needs a gradient from the stages that received
// its outputs, so these must be freed by then (another thread frees a send shortly after it ends). `all`: the
// first backward of a stage follows the arrival of all its outputs, as in GPipe. With three ranks, stage 0
// also sends a value that skips stage 1.
void expect_sent_outputs_freed(schedule::ScheduleKind kind, int ranks, bool all) {
  constexpr int microbatches = 6;
  constexpr std::int64_t width = 160;  // larger than the threshold below which sends are freed in batches
  comm::run_thread_ranks(ranks, [&](comm::World& world) {
    using Storage = c10::weak_intrusive_ptr<c10::StorageImpl>;
    std::vector<std::vector<Storage>> sent;  // by microbatch, which is the order of the forwards
    const int rank = world.rank().value;
    const bool sends_skip = ranks == 3 && rank == 0;
    const auto owner = std::make_shared<torch::nn::LinearImpl>(width, width);
    const auto module = runtime::make_stage_module(
        owner, [&sent, owner, sends_skip](const value::Args& args, const value::Kwargs& kwargs) {
          at::Tensor x = args[0].toTensor();
          if (kwargs.contains("skip")) x = x + kwargs.at("skip").toTensor();
          const at::Tensor y = owner->forward(x);
          runtime::StageResult result(y);
          sent.push_back({Storage(y.storage().getWeakStorageImpl())});
          if (sends_skip) {
            const at::Tensor skip = owner->forward(x);
            sent.back().emplace_back(skip.storage().getWeakStorageImpl());
            result.skips["skip"] = skip;
          }
          return result;
        });
    const auto alive = [&](std::size_t count) {
      std::ptrdiff_t sum = 0;
      for (std::size_t m = 0; m < count; ++m)
        sum += std::count_if(sent[m].begin(), sent[m].end(), [](const Storage& s) { return !s.expired(); });
      return sum;
    };
    runtime::PipelineOptions options;
    options.loss = [](const at::Tensor& y, const at::Tensor& t) { return (y - t).square().mean(); };
    if (ranks == 3) options.skips = {{"skip", StageId(0), StageId(2)}};
    int checked = 0;
    const auto check = [&](const schedule::Action& action, const std::function<void()>& run_default) {
      const std::size_t count = all ? sent.size() : action.microbatch().index() + 1;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (alive(count) > 0 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      CHECK_SAME(alive(count), 0);
      ++checked;
      run_default();
    };
    if (rank + 1 < ranks) {
      options.execution.custom[schedule::ActionKind::Backward] = check;
      options.execution.custom[schedule::ActionKind::BackwardInput] = check;
    }
    runtime::PipelineSchedule pipeline(
        runtime::PipelineStage(module, StageId(rank), ranks, at::kCPU, world.group()), kind, microbatches,
        options);
    const at::Tensor x = at::ones({microbatches * width, width});
    pipeline.step({x}, x);
    CHECK_SAME(sent.size(), std::size_t{microbatches});
    CHECK_SAME(checked, rank + 1 < ranks ? microbatches : 0);
    CHECK_THAT(owner->weight.grad().defined());
  });
}

TEST(RuntimeStep, FreesSentOutputsBeforeTheirBackward) {
  for (const int ranks : {2, 3}) {
    expect_sent_outputs_freed(schedule::ScheduleKind::GPipe, ranks, true);
    expect_sent_outputs_freed(schedule::ScheduleKind::LoopedBFS, ranks, true);
    expect_sent_outputs_freed(schedule::ScheduleKind::OneFOneB, ranks, false);
    expect_sent_outputs_freed(schedule::ScheduleKind::ZB1P, ranks, false);  // its backward is split
  }
}

// A forward pass keeps two of its values for the backward pass, the inputs of both sines. One rank, because
// thread ranks share their heap.
TEST(RuntimeTimeline, MemoryRisesByKeptActivationsUntilTheirBackward) {
  constexpr int microbatches = 4;
  constexpr std::int64_t elements = 1 << 20;
  constexpr double kept = 2.0 * elements * sizeof(float), slack = 1 << 16;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    const auto owner = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(1, 1).bias(false));
    const auto module =
        runtime::make_stage_module(owner, [owner](const value::Args& args, const value::Kwargs&) {
          return runtime::StageResult((args[0].toTensor() * owner->weight).sin().sin());
        });
    runtime::PipelineOptions options;
    options.loss = [](const at::Tensor& y, const at::Tensor&) { return y.sum(); };
    options.return_outputs = false;
    runtime::PipelineSchedule pipeline(runtime::PipelineStage(module, StageId(0), 1, at::kCPU, world.group()),
                                       schedule::ScheduleKind::GPipe, microbatches, options);
    const at::Tensor x = at::ones({microbatches, elements});
    EXPECT_TRUE(pipeline.step({x}, x).timeline.memory.empty());
    for (const bool wait : {true, false}) {
      const runtime::StepResult result = pipeline.step({x}, x, {.wait = wait, .measure_memory = true});
      const schedule::Timeline timeline = wait ? result.timeline : result.read_timeline();
      const std::vector<schedule::TimedAction>& actions = timeline.ranks.at(0);
      const std::vector<schedule::MemorySample>& memory = timeline.memory.at(0);
      ASSERT_EQ(actions.size(), 2U * microbatches);
      ASSERT_EQ(memory.size(), actions.size() + 1);
      EXPECT_EQ(memory[0].time, 0);
      for (std::size_t i = 0; i < actions.size(); ++i) {
        SCOPED_TRACE(to_string(actions[i].action));
        const bool forward = actions[i].action.kind() == schedule::ActionKind::Forward;
        EXPECT_EQ(memory[i + 1].time, actions[i].end);
        EXPECT_NEAR(static_cast<double>(memory[i + 1].bytes) - static_cast<double>(memory[i].bytes),
                    forward ? kept : -kept, slack);
      }
    }
  });
}

TEST(RuntimeTimeline, MeasuringMemoryChangesNoResult) {
  std::vector<std::vector<at::Tensor>> losses;
  for (const bool measured : {false, true}) {
    comm::run_thread_ranks(2, [&](comm::World& world) {
      const PipelineModel model = tied_transformer();
      const auto module = model.make(2)[world.rank().index()];
      runtime::PipelineSchedule pipeline(
          runtime::PipelineStage(module, StageId(world.rank().value), 2, at::kCPU, world.group()),
          schedule::ScheduleKind::ZB1P, 4, options_for(model, 2));
      TestBatch batch = model.batch(8);
      batch.options.measure_memory = measured;
      const runtime::StepResult result = step_on(pipeline, batch);
      CHECK_SAME(result.timeline.memory.size(), std::size_t{measured ? 2U : 0U});
      if (world.rank().value == 1) losses.push_back(result.losses);
    });
  }
  ASSERT_EQ(losses.size(), 2U);
  for (std::size_t m = 0; m < losses[0].size(); ++m) EXPECT_TRUE(at::equal(losses[0][m], losses[1][m]));
}

TEST(RuntimeProfiles, AreMeansExcludingFirstSample) {
  schedule::Timeline timeline;
  const auto forward = [](int m) { return schedule::Action::forward(StageId(3), MicrobatchId(m)); };
  timeline.ranks = {{{forward(0), 0, 9}, {forward(1), 9, 10}, {forward(2), 10, 13}},
                    {{schedule::Action::backward_weight(StageId(1), MicrobatchId(0)), 0, 5}}};
  const auto profiles = runtime::profile_stages(timeline);
  EXPECT_EQ(profiles.at(StageId(3)).forward, 2.0);
  EXPECT_EQ(profiles.at(StageId(3)).backward, 0.0);
  EXPECT_EQ(profiles.at(StageId(1)).backward_weight, 5.0);
}

}  // namespace
}  // namespace penstock::test
