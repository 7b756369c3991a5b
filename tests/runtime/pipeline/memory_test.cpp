// Memory of a step: no more received values than microbatches in flight, and reused buffers.
#include "runtime/support/dense_comparison.h"
#include "runtime/transfer/buffer_pool.h"
#include "support/check.h"
#include "support/models/stage_models.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/stage_profile.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

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
    for (int step = 0; step < 2; ++step) pipeline.step(model.batch(microbatches));
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
// only the gradient edge is kept. The first backward of a GPipe stage runs after all outputs have arrived at
// the next stage, so all must be freed by then (another thread frees a send shortly after it ends).
TEST(RuntimeStep, FreesSentOutputsBeforeTheirBackward) {
  constexpr int microbatches = 6;
  constexpr std::int64_t width = 160;  // larger than the threshold below which sends are freed in batches
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::GPipe, schedule::ScheduleKind::LoopedBFS}) {
    comm::run_thread_ranks(2, [&](comm::World& world) {
      using Storage = c10::weak_intrusive_ptr<c10::StorageImpl>;
      std::vector<Storage> sent;
      const int rank = world.rank().value;
      const auto owner = std::make_shared<torch::nn::LinearImpl>(width, width);
      const auto module =
          runtime::make_stage_module(owner, [&sent, owner](const value::Args& args, const value::Kwargs&) {
            const at::Tensor y = owner->forward(args[0].toTensor());
            sent.emplace_back(y.storage().getWeakStorageImpl());
            return runtime::StageResult(y);
          });
      const auto alive = [&] {
        return std::count_if(sent.begin(), sent.end(), [](const Storage& s) { return !s.expired(); });
      };
      runtime::PipelineOptions options;
      options.loss = [](const at::Tensor& y, const at::Tensor& t) { return (y - t).square().mean(); };
      bool first = true;
      if (rank == 0) {
        options.custom[schedule::ActionKind::Backward] = [&](const schedule::Action&,
                                                             const std::function<void()>& run_default) {
          const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
          while (first && alive() > 0 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
          if (std::exchange(first, false)) CHECK_SAME(alive(), 0);
          run_default();
        };
      }
      runtime::PipelineSchedule pipeline(
          runtime::PipelineStage(module, StageId(rank), 2, at::kCPU, world.group()), kind, microbatches,
          options);
      const at::Tensor x = at::ones({microbatches * width, width});
      pipeline.step({x}, x);
      CHECK_SAME(sent.size(), std::size_t{microbatches});
      CHECK_THAT(owner->weight.grad().defined());
    });
  }
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
