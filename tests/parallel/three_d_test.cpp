// Pipeline, data and tensor parallelism in every schedule: losses, gradients and three steps of AdamW match
// one process, and the communication is as expected.
#include "parallel/dense_gpt.h"
#include "parallel/three_axis_run.h"
#include "support/check.h"
#include "support/process_ranks.h"
#include "tensor/layout/mesh_impl.h"

#include <penstock/base/error.h>
#include <penstock/comm/flight_record.h>
#include <penstock/comm/thread_ranks.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>

namespace penstock::test {
namespace {

const DenseTraining& dense_of(Kind kind) {
  static std::map<Kind, DenseTraining> runs;
  if (!runs.contains(kind)) runs.emplace(kind, train_dense(kind));
  return runs.at(kind);
}

void train_and_compare(const comm::World& world, Axes axes, Row row, Kind kind, Data data,
                       Activation activation, const DenseTraining& dense,
                       runtime::ShapeMode shapes = runtime::ShapeMode::Inferred, bool recompute = false) {
  runtime::StageOptions stage_options;
  stage_options.recompute = recompute;
  const ThreeAxisGpt rank(world, axes, row.schedule, row.stages_per_rank, kind, data, activation,
                          stage_options);
  runtime::PipelineOptions options = rank.options();
  options.shapes = shapes;
  runtime::PipelineSchedule pipeline(rank.stages, row.schedule, kMicrobatches, options);
  torch::optim::AdamW optimizer = adamw(rank.optimizer_parameters());
  for (int step = 0; step < kTrainSteps; ++step) {
    optimizer.zero_grad();
    const Batch own = rank.local_rows(batch_of(step));
    const at::Tensor loss = rank.mean(pipeline.step({own.inputs}, own.targets).loss);
    if (loss.defined())
      CHECK_THAT(std::abs(loss.item<double>() - dense.losses[static_cast<std::size_t>(step)]) < 1e-5);
    if (step == 0) expect_equal("gradient of", rank.gradients(), dense.gradients);
    optimizer.step();
  }
  expect_equal("parameter", rank.parameters(), dense.parameters);
}

void compare(Axes axes, Row row, Kind kind, Data data, Activation activation,
             runtime::ShapeMode shapes = runtime::ShapeMode::Inferred, bool recompute = false) {
  at::set_num_threads(1);
  SCOPED_TRACE(row.text() + ", " + text(kind) + ", data parallel: " + text(data) +
               ", activations: " + text(activation));
  const DenseTraining& dense = dense_of(kind);
  EXPECT_NO_THROW(comm::run_thread_ranks(axes.ranks(), [&](comm::World& world) {
    train_and_compare(world, axes, row, kind, data, activation, dense, shapes, recompute);
  }));
}

class Parallel3D : public ::testing::TestWithParam<Data> {};
INSTANTIATE_TEST_SUITE_P(Modes, Parallel3D, ::testing::Values(Data::Replicated, Data::Sharded),
                         [](const auto& mode) { return text(mode.param); });

// Kinds and activations alternate over the schedules; each schedule covers each of them in one of the modes.
TEST_P(Parallel3D, MatchesDenseTraining) {
  const std::vector<Kind> kinds{Kind::Plain, Kind::Tied, Kind::Frozen};
  const std::vector<Activation> activations{Activation::Full, Activation::AsItIs, Activation::ShardTime};
  const std::vector<Row> rows = schedules(2);
  ASSERT_GT(rows.size(), 10U);
  std::size_t turn = GetParam() == Data::Sharded ? 1 : 0;
  for (const Row& row : rows) {
    compare({.pp = 2, .dp = 2, .tp = 2}, row, kinds[turn % 3], GetParam(), activations[turn / 3 % 3]);
    ++turn;
  }
}

TEST(ParallelPipelineTensor, MatchesDenseTrainingInEverySchedule) {
  const std::vector<Kind> kinds{Kind::Tied, Kind::Frozen, Kind::Plain};
  const std::vector<Activation> activations{Activation::AsItIs, Activation::ShardTime, Activation::Full};
  std::size_t turn = 0;
  for (const Row& row : schedules(2)) {
    compare({.pp = 2, .tp = 2}, row, kinds[turn % 3], Data::None, activations[turn / 3 % 3]);
    ++turn;
  }
}

TEST(ParallelPipelineHybrid, MatchesDenseTraining) {
  for (const Row& row : schedules(2))
    compare({.pp = 2, .replicas = 2, .dp = 2}, row, Kind::Tied, Data::Sharded, Activation::Full);
}

// Placements, mesh and global shape of activations are transferred together with them.
TEST(ParallelDistributedActivations, MatchPlainActivationsInEveryShapeMode) {
  for (const Activation activation : {Activation::AsItIs, Activation::ShardRows, Activation::ShardTime}) {
    for (const runtime::ShapeMode shapes :
         {runtime::ShapeMode::Inferred, runtime::ShapeMode::Static, runtime::ShapeMode::Dynamic}) {
      for (const Row& row :
           {Row{schedule::ScheduleKind::OneFOneB, 1}, Row{schedule::ScheduleKind::ZBVZeroBubble, 2}})
        compare({.pp = 2, .tp = 2}, row, Kind::Tied, Data::None, activation, shapes);
    }
  }
}

TEST(ParallelDistributedActivations, CanBeRecomputed) {
  for (const Row& row :
       {Row{schedule::ScheduleKind::OneFOneB, 1}, Row{schedule::ScheduleKind::ZBVZeroBubble, 2}})
    compare({.pp = 2, .tp = 2}, row, Kind::Tied, Data::None, Activation::ShardTime,
            runtime::ShapeMode::Inferred, true);
}

const RankFunction gloo_ranks("three_d", [] {
  at::set_num_threads(1);
  const comm::World world = comm::init();
  train_and_compare(world, {.pp = 2, .dp = 2, .tp = 2}, {schedule::ScheduleKind::ZB1P, 1}, Kind::Tied,
                    Data::Sharded, Activation::ShardTime, train_dense(Kind::Tied));
  return 0;
});

TEST(Parallel3D, MatchesDenseTrainingOverGlooProcesses) {
  const RanksOutcome outcome = run_process_ranks("three_d", 8);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
}

// The placements of an activation belong to its shape: they may not change if shapes are static.
TEST(ParallelDistributedActivations, MayChangePlacementsOnlyWithDynamicShapes) {
  for (const runtime::ShapeMode shapes : {runtime::ShapeMode::Inferred, runtime::ShapeMode::Dynamic}) {
    std::vector<std::string> causes;
    std::mutex mutex;
    comm::run_thread_ranks(4, [&](comm::World& world) {
      const tensor::DeviceMesh mesh(world.group(), {2, 2}, {"pp", "tp"});
      const int stage = mesh.group("pp").rank();
      int calls = 0;
      const auto forward = [&](const value::Args& args, const value::Kwargs&) {
        const at::Tensor& x = args[0].toTensor();
        if (stage == 1) return runtime::StageResult(tensor::full_tensor(x));
        return runtime::StageResult(distribute_tensor(x, mesh["tp"], {tensor::Shard(++calls % 2)}));
      };
      runtime::StageOptions stage_options;
      stage_options.mesh = mesh["tp"];
      const runtime::PipelineStage here(runtime::make_stage_module(nullptr, forward), StageId(stage), 2,
                                        at::kCPU, mesh.group("pp"), stage_options);
      runtime::PipelineOptions options;
      options.loss = runtime::tensor_loss([](const at::Tensor& y, const at::Tensor&) { return y.sum(); });
      options.shapes = shapes;
      runtime::PipelineSchedule pipeline({here}, "GPipe", 2, options);
      const at::Tensor x = at::arange(16, at::kFloat).view({4, 4});
      try {
        const runtime::StepResult result = pipeline.eval({x}, x);
        if (stage == 1) CHECK_TENSORS(result.outputs.toTensor(), x);
        world.group().barrier();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        causes.emplace_back(error.what());
      }
    });
    EXPECT_EQ(causes.empty(), shapes == runtime::ShapeMode::Dynamic);
    for (const std::string& cause : causes)
      EXPECT_NE(cause.find("with [Shard(0)]), previously"), std::string::npos) << cause;
  }
}

TEST(ParallelDistributedActivations, ArriveOnMeshOfStage) {
  comm::run_thread_ranks(4, [](comm::World& world) {
    const tensor::DeviceMesh mesh(world.group(), {2, 2}, {"pp", "tp"});
    const int stage = mesh.group("pp").rank();
    // A second mesh over the same ranks, as in a stage that does not know the mesh of the first one.
    const tensor::DeviceMesh own(mesh.group("tp"), {2}, {"tp"});
    const at::Tensor x = at::arange(12, at::kFloat).view({4, 3});
    const auto first = [&](const value::Args& args, const value::Kwargs&) {
      return runtime::StageResult(distribute_tensor(args[0].toTensor(), mesh["tp"], {tensor::Shard(1)}));
    };
    const auto second = [&](const value::Args& args, const value::Kwargs&) {
      const at::Tensor& got = args[0].toTensor();
      CHECK_THAT(tensor::is_dtensor(got) &&
                 tensor::Access::impl(tensor::mesh_of(got)) == tensor::Access::impl(own));
      CHECK_THAT(tensor::placements_of(got) == tensor::Placements{tensor::Shard(1)} &&
                 got.sizes() == at::IntArrayRef({2, 3}));
      return runtime::StageResult(got * 2);
    };
    runtime::StageOptions options;
    options.mesh = own;
    const runtime::PipelineStage here(
        runtime::make_stage_module(nullptr, stage == 0 ? runtime::StageFunction(first) : second),
        StageId(stage), 2, at::kCPU, mesh.group("pp"), options);
    runtime::PipelineSchedule pipeline(
        {here}, "GPipe", 2,
        {.loss = runtime::tensor_loss([](const at::Tensor& y, const at::Tensor&) { return y.sum(); })});
    const runtime::StepResult result = pipeline.eval({x}, x);
    if (stage == 1) CHECK_TENSORS(tensor::full_tensor(result.outputs.toTensor()), x * 2);
  });
}

TEST(ParallelDistributedActivations, RequireMeshWithSameAxes) {
  for (const bool other : {false, true}) {
    std::set<std::string> causes;
    std::mutex mutex;
    comm::run_thread_ranks(4, [&](comm::World& world) {
      const tensor::DeviceMesh mesh(world.group(), {2, 2}, {"pp", "tp"});
      const int stage = mesh.group("pp").rank();
      const auto forward = [&](const value::Args& args, const value::Kwargs&) {
        return runtime::StageResult(
            stage == 0 ? distribute_tensor(args[0].toTensor(), mesh["tp"], {tensor::Shard(1)})
                       : args[0].toTensor() * 2);
      };
      runtime::StageOptions options;
      if (other) options.mesh = tensor::DeviceMesh(mesh.group("tp"), {2}, {"other"});
      const runtime::PipelineStage here(runtime::make_stage_module(nullptr, forward), StageId(stage), 2,
                                        at::kCPU, mesh.group("pp"), options);
      runtime::PipelineSchedule pipeline(
          {here}, "GPipe", 2,
          {.loss = runtime::tensor_loss([](const at::Tensor& y, const at::Tensor&) { return y.sum(); })});
      try {
        pipeline.eval({at::ones({4, 3})}, at::ones({4, 3}));
        world.group().barrier();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        causes.insert(error.what());
      }
    });
    ASSERT_FALSE(causes.empty());
    for (const std::string& cause : causes) {
      EXPECT_NE(cause.find("no mesh with these axes"), std::string::npos) << cause;
      EXPECT_NE(cause.find("DeviceMesh(tp=2) with [Shard(1)]"), std::string::npos) << cause;
    }
  }
}

// How many operations of a group a rank has started, and the number of the first one since `from`.
struct Seen {
  int count = 0;
  std::uint64_t first = 0;
};
Seen seen(const comm::World& world, const std::string& op, const std::string& group, std::uint64_t from) {
  Seen result;
  for (const comm::FlightRecord& record : world.flight_records()) {
    if (record.number <= from || op != record.op || (!group.empty() && record.group != group)) continue;
    if (result.count++ == 0) result.first = record.number;
  }
  return result;
}
std::uint64_t last_number(const comm::World& world) {
  const auto records = world.flight_records();
  return records.empty() ? 0 : records.back().number;
}

// The number of units of a sharded stage: each ends with the parameter that makes it large enough.
int units_of(const parallel::ShardedStages& sharded, const runtime::PipelineStage& stage) {
  int units = 1;
  std::int64_t bytes = 0;
  for (const parallel::ShardedParameter& item : sharded.sharded(stage.index()).shards()) {
    if (bytes >= kUnitBytes) ++units, bytes = 0;
    std::int64_t own = 4;
    for (const std::int64_t size : item.shape) own *= size;
    bytes += own;
  }
  return units;
}

TEST_P(Parallel3D, ReducesOncePerStepAfterLastWeightBackwardOfStage) {
  at::set_num_threads(1);
  for (const Row& row : schedules(2)) {
    SCOPED_TRACE(row.text());
    EXPECT_NO_THROW(comm::run_thread_ranks(8, [&](comm::World& world) {
      const ThreeAxisGpt rank(world, {.pp = 2, .dp = 2, .tp = 2}, row.schedule, row.stages_per_rank,
                              Kind::Plain, GetParam());
      runtime::PipelineOptions options = rank.options();
      const std::string group = rank.mesh.group("dp").name();
      std::map<int, int> weights;
      std::map<int, std::uint64_t> last;  // by stage: operations started before its last weight backward
      std::uint64_t reduce = 0;           // operations started before the first REDUCE_GRAD
      const runtime::ActionFunction record_progress = [&](const schedule::Action& action,
                                                          const std::function<void()>& run_default) {
        if (++weights[action.stage().value] == kMicrobatches) last[action.stage().value] = last_number(world);
        run_default();
      };
      options.execution.custom[schedule::ActionKind::Backward] =
          options.execution.custom[schedule::ActionKind::BackwardWeight] = record_progress;
      options.execution.custom[schedule::ActionKind::ReduceGrad] =
          [&](const schedule::Action&, const std::function<void()>& run_default) {
            if (reduce == 0) reduce = last_number(world);
            run_default();
          };
      const std::uint64_t start = last_number(world);
      tensor::reset_traffic();
      runtime::PipelineSchedule pipeline(rank.stages, row.schedule, kMicrobatches, options);
      const Batch own = rank.local_rows(batch_of(0));
      pipeline.step({own.inputs}, own.targets);
      const std::uint64_t first_last = std::min_element(last.begin(), last.end(), [](auto& a, auto& b) {
                                         return a.second < b.second;
                                       })->second;
      Seen reductions;
      int expected = 0;
      if (GetParam() == Data::Replicated) {
        reductions = seen(world, "all_reduce", group, start);
        for (const runtime::PipelineStage& stage : rank.stages)
          expected += static_cast<int>(rank.replicated->replica(stage.index()).buckets().size());
      } else {
        reductions = seen(world, "reduce_scatter", "", start);
        CHECK_SAME(tensor::traffic().reduce_scatters, 0);
        for (const runtime::PipelineStage& stage : rank.stages) expected += units_of(*rank.sharded, stage);
      }
      CHECK_SAME(reductions.count, expected);
      CHECK_THAT(expected > row.stages_per_rank);
      CHECK_THAT(reductions.first > first_last);
      CHECK_THAT(reductions.first <= reduce);  // while the last backward was running
    }));
  }
}

TEST_P(Parallel3D, AccumulatesOverStepsAndClipsByGlobalNorm) {
  at::set_num_threads(1);
  for (const Kind kind : {Kind::Plain, Kind::Tied}) {
    const DenseTraining& dense = dense_of(kind);
    double squares = 0;
    for (const auto& [name, grad] : dense.gradients)
      squares += (2 * grad).to(at::kDouble).square().sum().item<double>();
    const double norm = std::sqrt(squares);
    comm::run_thread_ranks(8, [&](comm::World& world) {
      const ThreeAxisGpt rank(world, {.pp = 2, .dp = 2, .tp = 2}, schedule::ScheduleKind::ZBVZeroBubble, 2,
                              kind, GetParam());
      runtime::PipelineSchedule pipeline(rank.stages, schedule::ScheduleKind::ZBVZeroBubble, kMicrobatches,
                                         rank.options());
      const Batch own = rank.local_rows(batch_of(0));
      for (int repeat = 0; repeat < 2; ++repeat) pipeline.step({own.inputs}, own.targets);
      expect_equal("gradient of", rank.gradients(), dense.gradients, 2);
      CHECK_THAT(std::abs(pipeline.clip_grad_norm(0.1) - norm) < 1e-5 * norm);
      expect_equal("gradient of", rank.gradients(), dense.gradients, 2 * 0.1 / norm);
    });
  }
}

TEST_P(Parallel3D, ContinuesAfterFailedStep) {
  at::set_num_threads(1);
  const DenseTraining& dense = dense_of(Kind::Plain);
  comm::run_thread_ranks(8, [&](comm::World& world) {
    ThreeAxisGpt rank(world, {.pp = 2, .dp = 2, .tp = 2}, schedule::ScheduleKind::ZB1P, 1, Kind::Plain,
                      GetParam());
    const Batch own = rank.local_rows(batch_of(0));
    bool thrown = false;
    try {
      runtime::PipelineOptions options = rank.options();
      int weights = 0;
      options.execution.custom[schedule::ActionKind::BackwardWeight] =
          [&](const schedule::Action&, const std::function<void()>& run_default) {
            if (++weights == 3 && world.rank().value == 5) throw std::runtime_error("broken on purpose");
            run_default();
          };
      runtime::PipelineSchedule(rank.stages, schedule::ScheduleKind::ZB1P, kMicrobatches, options)
          .step({own.inputs}, own.targets);
      world.group().barrier();  // ranks that had already finished learn of the failure here
    } catch (const std::exception&) {
      thrown = true;
    }
    CHECK_THAT(thrown);
    world.rebuild();
    rank.mesh.recover(world.group());
    rank.drop_gradients();
    std::vector<runtime::PipelineStage> stages;
    for (const runtime::PipelineStage& stage : rank.stages) {
      for (const value::NamedTensor& item : stage.module().parameters())
        item.tensor.mutable_grad() = at::Tensor();
      stages.emplace_back(std::shared_ptr<runtime::StageModule>(std::shared_ptr<void>(), &stage.module()),
                          stage.index(), 2, at::kCPU, rank.mesh.group("pp"));
    }
    if (rank.sharded) {
      rank.sharded->recover(rank.mesh.group("dp"));
    } else {
      rank.replicated->recover(rank.mesh.group("dp"));
    }
    runtime::PipelineSchedule pipeline(stages, schedule::ScheduleKind::ZB1P, kMicrobatches, rank.options());
    pipeline.step({own.inputs}, own.targets);
    expect_equal("gradient of", rank.gradients(), dense.gradients);
  });
}

}  // namespace
}  // namespace penstock::test
