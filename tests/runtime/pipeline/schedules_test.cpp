// Guarantees of every schedule in addition to correct gradients: determinism, however it was created (by
// name, by class, from a file), values passed without copies within a rank, and no references to sent values.
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/schedules.h>
#include <penstock/schedule/csv.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <sstream>

namespace penstock::test {
namespace {

constexpr int kScheduleRanks = 2;
constexpr int kScheduleMicrobatches = 4;
constexpr int kScheduleRows = 10;
constexpr std::uint64_t kSeed = 9;

int stages_per_rank(const schedule::ScheduleInfo& info) {
  return info.only_stages_per_rank.value_or(info.default_stages_per_rank);
}

runtime::PipelineOptions seeded(const PipelineModel& model, int stages) {
  runtime::PipelineOptions options = options_for(model, stages);
  options.seed = kSeed;
  return options;
}

// The losses and gradients of a step on this rank.
std::vector<at::Tensor> results_of(runtime::PipelineSchedule& pipeline, const PipelineModel& model) {
  std::vector<at::Tensor> results = step_on(pipeline, model.batch(kScheduleRows)).losses;
  for (const runtime::PipelineStage& stage : pipeline.stages()) {
    for (const value::NamedTensor& item : snapshot_grads(stage.module())) results.push_back(item.tensor);
  }
  return results;
}

void expect_same(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  CHECK_SAME(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) CHECK_TENSORS(actual[i], expected[i]);
}

TEST(RuntimeEverySchedule, IsDeterministic) {
  at::set_num_threads(1);
  int schedules = 0;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    if (!info.has_backward) continue;
    SCOPED_TRACE(info.name);
    const int each = stages_per_rank(info);
    for (const PipelineModel& model : {mlp(), tied_transformer()}) {
      ASSERT_NO_THROW(comm::run_thread_ranks(kScheduleRanks, [&](comm::World& world) {
        const auto run = [&] {
          runtime::PipelineSchedule pipeline(stages_for(model, world.group(), info.kind, each), info.kind,
                                             kScheduleMicrobatches, seeded(model, kScheduleRanks * each));
          return results_of(pipeline, model);
        };
        const auto first = run();
        expect_same(run(), first);
      }));
    }
    ++schedules;
  }
  EXPECT_GE(schedules, 7);
}

template <class Named>
void expect_like_its_kind(schedule::ScheduleKind kind) {
  const PipelineModel model = mlp();
  const int each = stages_per_rank(info_of(kind));
  comm::run_thread_ranks(kScheduleRanks, [&](comm::World& world) {
    const auto stages = [&] { return stages_for(model, world.group(), kind, each); };
    Named named(stages(), kScheduleMicrobatches, seeded(model, kScheduleRanks * each));
    runtime::PipelineSchedule by_name(stages(), to_string(kind), kScheduleMicrobatches,
                                      seeded(model, kScheduleRanks * each));
    CHECK_SAME(named.program().name(), std::string(to_string(kind)));
    expect_same(results_of(named, model), results_of(by_name, model));
  });
}

TEST(RuntimeNamedSchedules, ClassesMatchSchedulesOfSameName) {
  at::set_num_threads(1);
  expect_like_its_kind<runtime::ScheduleGPipe>(schedule::ScheduleKind::GPipe);
  expect_like_its_kind<runtime::Schedule1F1B>(schedule::ScheduleKind::OneFOneB);
  expect_like_its_kind<runtime::ScheduleInterleaved1F1B>(schedule::ScheduleKind::Interleaved1F1B);
  expect_like_its_kind<runtime::ScheduleLoopedBFS>(schedule::ScheduleKind::LoopedBFS);
  expect_like_its_kind<runtime::ScheduleInterleavedZeroBubble>(schedule::ScheduleKind::InterleavedZeroBubble);
  expect_like_its_kind<runtime::ScheduleZBVZeroBubble>(schedule::ScheduleKind::ZBVZeroBubble);
  expect_like_its_kind<runtime::ScheduleDualPipeV>(schedule::ScheduleKind::DualPipeV);
}

TEST(RuntimeNamedSchedules, ForwardOnlyMatchesDenseForward) {
  const PipelineModel model = skip_net();
  const DenseRun dense = run_dense(model, kScheduleRanks, kScheduleMicrobatches, kScheduleRows, 1, kSeed);
  comm::run_thread_ranks(kScheduleRanks, [&](comm::World& world) {
    runtime::ScheduleForwardOnly pipeline(
        stages_for(model, world.group(), schedule::ScheduleKind::ForwardOnly, 1), kScheduleMicrobatches,
        options_for(model, kScheduleRanks));
    const runtime::StepResult result = step_on(pipeline, model.batch(kScheduleRows));
    if (world.rank().value == kScheduleRanks - 1)
      CHECK_TENSORS(result.outputs.toTensor(), dense.outputs[0].toTensor());
    for (const value::NamedTensor& item : snapshot_grads(pipeline.stages().front().module()))
      CHECK_THAT(!item.tensor.defined());
  });
}

// A file with a table or lowered lists runs like its source schedule.
TEST(RuntimeScheduleFiles, RunLikeTheirSourceSchedules) {
  at::set_num_threads(1);
  const PipelineModel model = mlp();
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::ZBVZeroBubble, schedule::ScheduleKind::DualPipeV}) {
    const int each = stages_per_rank(info_of(kind));
    comm::run_thread_ranks(kScheduleRanks, [&](comm::World& world) {
      const auto stages = [&] { return stages_for(model, world.group(), kind, each); };
      const runtime::PipelineOptions options = seeded(model, kScheduleRanks * each);
      runtime::PipelineSchedule built_in(stages(), kind, kScheduleMicrobatches, options);
      const auto expected = results_of(built_in, model);
      std::istringstream compute(to_csv(make_schedule(kind, {kScheduleRanks, each, kScheduleMicrobatches})));
      runtime::PipelineSchedule from_table(stages(), schedule::read_csv(compute).schedule(), options);
      expect_same(results_of(from_table, model), expected);
      std::istringstream lowered(to_csv(built_in.program().draft()));
      runtime::PipelineSchedule from_program(
          stages(),
          schedule::Program::validated(schedule::read_csv(lowered).draft(), built_in.program().send_mode()),
          options);
      expect_same(results_of(from_program, model), expected);
    });
  }
}

TEST(RuntimeStagesOfOneRank, PassValuesWithoutCopy) {
  const PipelineModel model = mlp();
  const auto modules = model.make(2);
  std::vector<const void*> given, taken;
  const auto first =
      runtime::make_stage_module(nullptr, [&](const value::Args& args, const value::Kwargs& kwargs) {
        runtime::StageResult result = modules[0]->forward(args, kwargs);
        given.push_back(result.output.toTensor().data_ptr());
        return result;
      });
  const auto second =
      runtime::make_stage_module(nullptr, [&](const value::Args& args, const value::Kwargs& kwargs) {
        taken.push_back(args[0].toTensor().data_ptr());
        return modules[1]->forward(args, kwargs);
      });
  comm::run_thread_ranks(1, [&](comm::World& world) {
    runtime::PipelineSchedule pipeline(
        {runtime::PipelineStage(first, StageId(0), 2, at::kCPU, world.group()),
         runtime::PipelineStage(second, StageId(1), 2, at::kCPU, world.group())},
        "Interleaved1F1B", kScheduleMicrobatches, options_for(model, 2));
    step_on(pipeline, model.batch(kScheduleRows));
  });
  EXPECT_EQ(given.size(), static_cast<std::size_t>(kScheduleMicrobatches));
  EXPECT_EQ(taken, given);
}

// Over thread ranks a send completes immediately, so nothing of an earlier microbatch may be alive at the
// next forward.
TEST(RuntimeStep, ReleasesSentValues) {
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  const at::Tensor x = at::ones({kScheduleMicrobatches, 64 << 10});  // too large to be freed in batches
  int most = 0;
  std::vector<WeakStorage> sent;
  const auto first = runtime::make_stage_module(
      nullptr, [&](const value::Args& args, const value::Kwargs&) -> runtime::StageResult {
        int alive = 0;
        for (const WeakStorage& output : sent) alive += output.expired() ? 0 : 1;
        most = std::max(most, alive);
        const at::Tensor output = args[0].toTensor() * 2;
        sent.emplace_back(output.storage().getWeakStorageImpl());
        return output;
      });
  const auto second = runtime::make_stage_module(
      nullptr, [](const value::Args& args, const value::Kwargs&) -> runtime::StageResult {
        return args[0].toTensor().sum(1, true);
      });
  comm::run_thread_ranks(kScheduleRanks, [&](comm::World& world) {
    const int rank = world.rank().value;
    const runtime::PipelineStage stage(rank == 0 ? first : second, StageId(rank), kScheduleRanks, at::kCPU,
                                       world.group());
    runtime::ScheduleForwardOnly pipeline(stage, kScheduleMicrobatches);
    for (int step = 0; step < 2; ++step) pipeline.step({x});
  });
  EXPECT_EQ(sent.size(), 2U * kScheduleMicrobatches);
  EXPECT_EQ(most, 0);
}

}  // namespace
}  // namespace penstock::test
