// OVERLAP_F_B on two threads: both parts run concurrently, with bitwise the same results as sequentially.
#include "runtime/step/worker_thread.h"
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/error.h>
#include <penstock/runtime/overlap.h>
#include <penstock/runtime/schedules.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>

namespace penstock::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kOverlapRanks = 2;
constexpr int kOverlapMicrobatches = 8;
constexpr int kOverlapRows = 19;
constexpr auto kOverlapKind = schedule::ScheduleKind::DualPipeV;

int overlaps_of(const runtime::PipelineSchedule& pipeline, Rank rank) {
  int count = 0;
  for (const schedule::Action& action : pipeline.program().of(rank))
    count += action.kind() == schedule::ActionKind::Overlap ? 1 : 0;
  return count;
}

runtime::PipelineSchedule overlapping(const PipelineModel& model, comm::World& world,
                                      runtime::PipelineOptions options, bool at_once) {
  if (at_once && !options.execution.custom.contains(schedule::ActionKind::Overlap))
    options.execution.custom[schedule::ActionKind::Overlap] = runtime::overlap_on_threads();
  options.seed = 11;
  return {stages_for(model, world.group(), kOverlapKind, 2), kOverlapKind, kOverlapMicrobatches, options};
}

TEST(RuntimeOverlap, IsBitwiseEqualConcurrentlyAndSequentially) {
  at::set_num_threads(1);
  for (const PipelineModel& model : all_models()) {
    SCOPED_TRACE(model.name);
    ASSERT_NO_THROW(comm::run_thread_ranks(kOverlapRanks, [&](comm::World& world) {
      const auto run = [&](bool at_once) {
        runtime::PipelineSchedule pipeline =
            overlapping(model, world, options_for(model, kOverlapRanks * 2), at_once);
        CHECK_THAT(overlaps_of(pipeline, world.rank()) > 0);
        std::vector<at::Tensor> results;
        for (int step = 0; step < 2; ++step) {
          for (const at::Tensor& loss : step_on(pipeline, model.batch(kOverlapRows)).losses)
            results.push_back(loss);
        }
        for (const runtime::PipelineStage& stage : pipeline.stages()) {
          for (const value::NamedTensor& item : snapshot_grads(stage.module()))
            if (item.tensor.defined()) results.push_back(item.tensor);
          for (const value::NamedTensor& item : snapshot(stage.module().buffers()))
            results.push_back(item.tensor);
        }
        return results;
      };
      const auto in_turn = run(false), at_once = run(true);
      CHECK_SAME(at_once.size(), in_turn.size());
      for (std::size_t i = 0; i < in_turn.size(); ++i) CHECK_TENSORS(at_once[i], in_turn[i]);
    }));
  }
}

// A barrier for two threads; false if the other one does not arrive.
class Rendezvous {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    here_ = 0;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  bool arrive() {
    std::unique_lock lock(mutex_);
    if (!open_) return true;
    ++here_;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::seconds(30), [this] { return here_ >= 2; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int here_ = 0;
};

// Every forward waits for the backward of its overlap: neither would end if they ran sequentially.
TEST(RuntimeOverlap, RunsForwardAndBackwardConcurrently) {
  const PipelineModel model = skip_net();
  comm::run_thread_ranks(kOverlapRanks, [&](comm::World& world) {
    const auto rendezvous = std::make_shared<Rendezvous>();
    PipelineModel meets = model;
    meets.make = [&](int stages) {
      auto modules = model.make(stages);
      for (auto& module : modules) {
        module = runtime::make_stage_module(
            nullptr, [rendezvous, inner = module](const value::Args& args, const value::Kwargs& kwargs) {
              if (!rendezvous->arrive())
                throw std::logic_error("no backward runs concurrently with this forward");
              runtime::StageResult result = inner->forward(args, kwargs);
              result.output.toTensor().register_hook([rendezvous](const at::Tensor& grad) {
                if (!rendezvous->arrive())
                  throw std::logic_error("no forward runs concurrently with this backward");
                return grad;
              });
              return result;
            });
      }
      return modules;
    };
    int overlaps = 0;
    runtime::PipelineOptions options = options_for(model, kOverlapRanks * 2);
    options.execution.custom[schedule::ActionKind::Overlap] = [&, at_once = runtime::overlap_on_threads()](
                                                                  const schedule::Action& action,
                                                                  const std::function<void()>& run_default,
                                                                  const runtime::StepView& view) {
      rendezvous->open();
      at_once(action, run_default, view);
      rendezvous->close();
      ++overlaps;
    };
    runtime::PipelineSchedule pipeline = overlapping(meets, world, options, true);
    step_on(pipeline, model.batch(kOverlapRows));
    CHECK_SAME(overlaps, overlaps_of(pipeline, world.rank()));
    CHECK_THAT(overlaps > 0);
  });
}

TEST(RuntimeOverlap, ForwardErrorReachesEveryRankAndStepsContinue) {
  at::set_num_threads(1);
  const PipelineModel good = mlp();
  std::vector<std::string> texts(kOverlapRanks);
  comm::run_thread_ranks(kOverlapRanks, [&](comm::World& world) {
    const auto inside = std::make_shared<bool>(false);
    PipelineModel model = good;
    model.make = [&](int stages) {
      auto modules = good.make(stages);
      for (auto& module : modules) {
        module = runtime::make_stage_module(
            nullptr, [inside, inner = module](const value::Args& args, const value::Kwargs& kwargs) {
              if (*inside) throw std::runtime_error("injected failure");
              return inner->forward(args, kwargs);
            });
      }
      return modules;
    };
    runtime::PipelineOptions options = options_for(model, kOverlapRanks * 2);
    if (world.rank().value == 1) {
      options.execution.custom[schedule::ActionKind::Overlap] = [&, at_once = runtime::overlap_on_threads()](
                                                                    const schedule::Action& action,
                                                                    const std::function<void()>& run_default,
                                                                    const runtime::StepView& view) {
        *inside = true;
        at_once(action, run_default, view);
      };
    }
    try {
      runtime::PipelineSchedule pipeline = overlapping(model, world, options, true);
      for (int step = 0; step < 2; ++step) step_on(pipeline, model.batch(kOverlapRows));
    } catch (const Error& e) {
      texts[world.rank().index()] = e.what();
    }
    world.rebuild();
    step_on(overlapping(good, world, options_for(good, kOverlapRanks * 2), true), good.batch(kOverlapRows));
  });
  for (const std::string& text : texts)
    EXPECT_THAT(text, AllOf(HasSubstr("injected failure"), HasSubstr("OVERLAP_F_B"), HasSubstr("rank 1")));
}

TEST(RuntimeWorkerThread, FinishesBothTasksBeforeThrowing) {
  runtime::WorkerThread second;
  bool ended = false;
  EXPECT_THROW(second.run_concurrently([&] { ended = true; }, [] { throw std::domain_error("here"); }),
               std::domain_error);
  EXPECT_TRUE(ended);
  EXPECT_THROW(second.run_concurrently([] { throw std::out_of_range("there"); }, [] {}), std::out_of_range);
  std::thread::id there;
  bool gradients = true;
  const at::NoGradGuard no_grad;
  second.run_concurrently(
      [&] {
        there = std::this_thread::get_id();
        gradients = at::GradMode::is_enabled();
      },
      [] {});
  EXPECT_NE(there, std::this_thread::get_id());
  EXPECT_FALSE(gradients);  // as on the calling thread
}

}  // namespace
}  // namespace penstock::test
