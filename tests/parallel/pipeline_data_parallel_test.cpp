// Pipeline and data parallelism combined, for every schedule: losses, gradients and training match a dense
// run over the same microbatches. (The reference does not reduce gradients in its zero-bubble schedules.)
#include "parallel/dense_gpt.h"
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/models/stage_models.h"
#include "support/process_ranks.h"

#include <penstock/comm/thread_ranks.h>
#include <penstock/parallel/pipeline_data_parallel.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <utility>

namespace penstock::test {
namespace {

constexpr std::uint64_t kSeed = 42;
constexpr int kSteps = 3;

// All except Replicated are sharded stages; Unsharded ones keep everything on every rank
// (ParameterStorage::Copy).
enum class Mode { Replicated, Sharded, ShardedGradients, ShardedOptimizer, Unsharded };
constexpr Mode kModes[] = {Mode::Replicated, Mode::Sharded, Mode::ShardedGradients, Mode::ShardedOptimizer,
                           Mode::Unsharded};

const char* text(Mode mode) {
  constexpr const char* names[] = {"Replicated", "Sharded", "ShardedGradients", "ShardedOptimizer",
                                   "Unsharded"};
  return names[static_cast<int>(mode)];
}

parallel::ParameterStorage storage_of(Mode mode) {
  switch (mode) {
    case Mode::ShardedGradients:
      return parallel::ParameterStorage::ShardGradients;
    case Mode::ShardedOptimizer:
      return parallel::ParameterStorage::ShardOptimizer;
    case Mode::Unsharded:
      return parallel::ParameterStorage::Copy;
    case Mode::Replicated:
    case Mode::Sharded:
      break;
  }
  return parallel::ParameterStorage::Shard;
}

// The pipeline of this rank, one of `replicas`. The ranks of a pipeline are adjacent in the world.
struct Place {
  Place(const comm::Group& world, int replicas)
      : ranks(world.size() / replicas),
        replica(world.rank() / ranks),
        pipeline(*world.split(replica, world.rank())),
        across(*world.split(world.rank() % ranks, world.rank())) {}
  int ranks, replica;
  comm::Group pipeline, across;
};

// The stages of this rank with their data parallelism.
struct Parallel {
  Parallel(const PipelineModel& model, const Place& place, schedule::ScheduleKind kind, int per_rank,
           Mode mode, parallel::StageShardOptions options = {}) {
    const int count = place.ranks * per_rank;
    const auto modules = model.make(count);
    const schedule::Placement placement =
        schedule::Placement::make(place.ranks, count, info_of(kind).placement);
    options.find_unused = true;
    options.storage = storage_of(mode);
    for (const runtime::SharedParameter& shared : model.shared(count)) {
      for (const runtime::ParameterLocation& item : shared) options.separate.push_back(item.name);
    }
    if (mode != Mode::Replicated) sharded = std::make_shared<parallel::ShardedStages>(place.across, options);
    for (const StageId stage : placement.stages_of(Rank(place.pipeline.rank()))) {
      const auto module = modules[stage.index()];
      stages.emplace_back(sharded ? sharded->add(stage, module) : module, stage, count, at::kCPU,
                          place.pipeline);
    }
    if (!sharded) replicated = std::make_shared<parallel::ReplicatedStages>(stages, place.across);
    data_parallel = sharded ? std::static_pointer_cast<runtime::DataParallel>(sharded) : replicated;
  }
  std::vector<value::NamedTensor> gradients(const runtime::PipelineStage& stage) const {
    return sharded ? sharded->sharded(stage.index()).gather_gradients() : snapshot_grads(stage.module());
  }
  std::vector<value::NamedTensor> parameters(const runtime::PipelineStage& stage) const {
    return sharded ? sharded->sharded(stage.index()).gather_parameters()
                   : snapshot(stage.module().parameters());
  }
  std::vector<runtime::PipelineStage> stages;
  std::shared_ptr<parallel::ShardedStages> sharded;
  std::shared_ptr<parallel::ReplicatedStages> replicated;
  std::shared_ptr<runtime::DataParallel> data_parallel;
};

runtime::PipelineOptions options_of(const PipelineModel& model, const Parallel& parallel,
                                    const Place& place) {
  runtime::PipelineOptions options = options_for(model, parallel.stages.front().num_stages());
  options.seed = kSeed;
  options.replica = static_cast<std::uint32_t>(place.replica);
  options.data_parallel = parallel.data_parallel;
  return options;
}

void expect_dense(const PipelineModel& model, const Case& test, const DenseRun& dense,
                  const comm::Group& world, int replicas, Mode mode) {
  const Place place(world, replicas);
  const Parallel parallel(model, place, test.kind, test.stages_per_rank, mode);
  runtime::PipelineSchedule pipeline(parallel.stages, test.kind, test.microbatches,
                                     options_of(model, parallel, place));
  for (int step = 0; step < kSteps; ++step) {
    const runtime::StepResult result =
        step_on(pipeline, replica_batch(model.batch(test.rows), place.replica, replicas));
    const auto& expected = dense.losses[static_cast<std::size_t>(step)];
    const std::size_t first = static_cast<std::size_t>(place.replica * test.microbatches);
    const std::string when = "step " + std::to_string(step) + " ";
    for (std::size_t m = 0; m < result.losses.size(); ++m)
      expect_near(when + "loss", result.losses[m], expected[first + m], step == 0 ? 1e-5 : 1e-4);
    for (const runtime::PipelineStage& stage : pipeline.stages()) {
      const auto s = stage.index().index();
      if (step == 0)
        expect_near("stage " + std::to_string(s) + " gradient of", parallel.gradients(stage),
                    dense.gradients[s]);
      sgd_step(stage.module());
    }
  }
  for (const runtime::PipelineStage& stage : pipeline.stages()) {
    const auto s = stage.index().index();
    expect_near("stage " + std::to_string(s) + " parameter", parallel.parameters(stage), dense.parameters[s],
                1e-4);
  }
}

// `world` ranks as `replicas` pipelines, in every schedule.
int sweep(const PipelineModel& model, int world, int replicas, Mode mode) {
  at::set_num_threads(1);
  const int ranks = world / replicas;
  const int microbatches = 2 * ranks, rows = replicas * (2 * microbatches + 1);  // uneven microbatches
  int run = 0;
  std::map<int, DenseRun> runs;
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    for (const int per_rank : {1, 2}) {
      const Case test{info.kind, per_rank, microbatches, rows};
      if (!info.has_backward || !legal(test, ranks)) continue;
      const int stages = ranks * per_rank;
      if (!runs.contains(stages))
        runs.emplace(stages, run_dense(model, stages, microbatches, rows, kSteps, kSeed, replicas));
      SCOPED_TRACE(model.name + ", " + std::to_string(replicas) + " replicas of " + std::to_string(ranks) +
                   " ranks: " + test.text());
      EXPECT_NO_THROW(comm::run_thread_ranks(world, [&](comm::World& w) {
        expect_dense(model, test, runs.at(stages), w.group(), replicas, mode);
      }));
      ++run;
    }
  }
  return run;
}

class ParallelEverySchedule : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, ParallelEverySchedule, ::testing::ValuesIn(kModes),
                         [](const auto& mode) { return text(mode.param); });

TEST_P(ParallelEverySchedule, MatchesDenseRunOver4Ranks) {
  for (const PipelineModel& model : all_models()) {
    if (model.name == "cnn") continue;  // the buffers of batch norm are local to each replica
    EXPECT_GT(sweep(model, 4, 2, GetParam()), 10);
  }
}

TEST_P(ParallelEverySchedule, MatchesDenseRunOver8Ranks) {
  EXPECT_GT(sweep(mlp(), 8, 2, GetParam()), 10);
  EXPECT_GT(sweep(tied_transformer(), 8, 4, GetParam()), 10);
}

const RankFunction gloo_ranks("pipeline_data_parallel", [] {
  at::set_num_threads(1);
  comm::World world = comm::init();
  for (const Mode mode : kModes) {
    for (const schedule::ScheduleKind kind :
         {schedule::ScheduleKind::InterleavedZeroBubble, schedule::ScheduleKind::ZB1P}) {
      const Case test{kind, kind == schedule::ScheduleKind::InterleavedZeroBubble ? 2 : 1, 4, 18};
      const PipelineModel model = tied_transformer();
      const DenseRun dense = run_dense(model, 2 * test.stages_per_rank, 4, 18, kSteps, kSeed, 2);
      expect_dense(model, test, dense, world.group(), 2, mode);
    }
  }
  return 0;
});

// Floating-point arguments are cast by position and by name, in any tree; integers are not.
TEST(ParallelPipelineData, ShardedStagesCastInputsAndOutputs) {
  comm::run_thread_ranks(2, [](comm::World& world) {
    for (const bool cast : {true, false}) {
      torch::nn::Linear layer(3, 3);
      const at::ScalarType want = cast ? at::kBFloat16 : at::kFloat;
      const runtime::StageFunction forward = [&](const value::Args& args,
                                                 const value::Kwargs& kwargs) -> runtime::StageResult {
        CHECK_THAT(layer->weight.scalar_type() == at::kBFloat16);
        CHECK_THAT(args[0].toTensor().scalar_type() == want);
        CHECK_THAT(args[1].toTuple()->elements()[0].toTensor().scalar_type() == want);
        CHECK_THAT(args[1].toTuple()->elements()[1].toTensor().scalar_type() == at::kLong);
        CHECK_THAT(kwargs.at("scale").toTensor().scalar_type() == want);
        return {layer->forward(args[0].toTensor().to(at::kBFloat16)), {{"skip", args[0]}}};
      };
      parallel::StageShardOptions options;
      options.compute_as = at::kBFloat16;
      options.cast_inputs = cast;
      options.output_as = at::kDouble;
      parallel::ShardedStages stages(world.group(), options);
      const auto module = stages.add(StageId(0), runtime::make_stage_module(layer.ptr(), forward));
      stages.before_compute(StageId(0));
      const at::Tensor x = at::ones({2, 3});
      const runtime::StageResult result =
          module->forward({x, c10::ivalue::Tuple::create({x, at::arange(3)})}, {{"scale", at::ones({1})}});
      CHECK_THAT(result.output.toTensor().scalar_type() == at::kDouble);
      CHECK_THAT(result.skips.at("skip").toTensor().scalar_type() == at::kDouble);
    }
  });
}

// Every rank keeps all parameters in float and computes with a copy in another type. Results in double match
// those of the dense run as closely as in float.
TEST(ParallelPipelineData, UnshardedStagesComputeInOtherType) {
  at::set_num_threads(1);
  const PipelineModel model = skip_net();
  const DenseRun dense = run_dense(model, 2, 4, 16, 1, kSeed, 2);
  for (const schedule::ScheduleKind kind : {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::ZB1P}) {
    for (const auto& precision : {std::pair{at::kDouble, 1e-5}, std::pair{at::kBFloat16, 2e-2}}) {
      parallel::StageShardOptions options;
      options.compute_as = precision.first;
      options.reduce_as = at::kFloat;
      comm::run_thread_ranks(4, [&](comm::World& world) {
        const auto& [type, tolerance] = precision;
        const Place place(world.group(), 2);
        const Parallel parallel(model, place, kind, 1, Mode::Unsharded, options);
        runtime::PipelineSchedule pipeline(parallel.stages, kind, 4, options_of(model, parallel, place));
        const runtime::StepResult result =
            step_on(pipeline, replica_batch(model.batch(16), place.replica, 2));
        const std::size_t first = static_cast<std::size_t>(place.replica * 4);
        for (std::size_t m = 0; m < result.losses.size(); ++m)
          expect_near("loss", result.losses[m].to(at::kFloat), dense.losses[0][first + m], tolerance);
        if (place.pipeline.rank() == 1) CHECK_THAT(result.outputs.toTensor().scalar_type() == type);
        for (const runtime::PipelineStage& stage : pipeline.stages()) {
          expect_near("gradient of", parallel.gradients(stage), dense.gradients[stage.index().index()],
                      tolerance);
          for (const parallel::ShardedParameter& item : parallel.sharded->sharded(stage.index()).shards()) {
            CHECK_THAT(item.shard.scalar_type() == at::kFloat);
            CHECK_SAME(item.shard.numel(), c10::multiply_integers(item.shape));
          }
        }
      });
    }
  }
}

TEST(ParallelPipelineData, MatchesDenseRunOverGlooProcesses) {
  const RanksOutcome outcome = run_process_ranks("pipeline_data_parallel", 4);
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
}

TEST_P(ParallelEverySchedule, ReducesEachStageOncePerStep) {
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::GPipe, schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::ZB1P}) {
    comm::run_thread_ranks(4, [&](comm::World& world) {
      const PipelineModel model = mlp();
      const Place place(world.group(), 2);
      const Parallel parallel(model, place, kind, 1, GetParam());
      runtime::PipelineSchedule pipeline(parallel.stages, kind, 4, options_of(model, parallel, place));
      const Traffic traffic(world);
      step_on(pipeline, replica_batch(model.batch(16), place.replica, 2));
      if (GetParam() == Mode::Unsharded || GetParam() == Mode::ShardedOptimizer) {
        // The flags of find_unused are reduced too, but they are smaller than the gradients.
        const std::uint64_t sent = traffic.of("all_reduce").bytes;
        std::uint64_t bytes = 0;
        for (const value::NamedTensor& item : parallel.parameters(parallel.stages.front()))
          bytes += item.tensor.nbytes();
        CHECK_SAME(sent / bytes, 1U);
        return;
      }
      const int reductions =
          traffic.of(GetParam() == Mode::Replicated ? "all_reduce" : "reduce_scatter").count;
      CHECK_SAME(reductions, 1);
    });
  }
}

TEST_P(ParallelEverySchedule, AccumulatesOverStepsAndClipsByGlobalNorm) {
  const PipelineModel model = mlp();
  for (const schedule::ScheduleKind kind : {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::ZB1P}) {
    const DenseRun once = run_dense(model, 2, 4, 16, 1, kSeed, 2);
    comm::run_thread_ranks(4, [&](comm::World& world) {
      const Place place(world.group(), 2);
      const Parallel parallel(model, place, kind, 1, GetParam());
      runtime::PipelineSchedule pipeline(parallel.stages, kind, 4, options_of(model, parallel, place));
      for (int repeat = 0; repeat < 2; ++repeat) {
        pipeline.set_steps(0);  // the same random numbers
        step_on(pipeline, replica_batch(model.batch(16), place.replica, 2));
      }
      double squares = 0;
      for (const auto& of_stage : once.gradients) {
        for (const value::NamedTensor& item : of_stage)
          squares += (item.tensor * 2).square().sum().item<double>();
      }
      const auto expect_gradients = [&](double factor) {
        for (const runtime::PipelineStage& stage : pipeline.stages()) {
          std::vector<value::NamedTensor> expected = snapshot(once.gradients[stage.index().index()]);
          for (value::NamedTensor& item : expected) item.tensor = item.tensor * factor;
          expect_near("gradient of", parallel.gradients(stage), expected);
        }
      };
      expect_gradients(2);
      const double norm = pipeline.clip_grad_norm(0.01);
      CHECK_THAT(std::abs(norm - std::sqrt(squares)) < 1e-5 * std::max(1.0, norm));
      expect_gradients(2 * 0.01 / norm);
    });
  }
}

// `eval` turns dropout off, even inside the wrapper of a sharded stage.
TEST_P(ParallelEverySchedule, EvaluatesInEvalMode) {
  at::set_num_threads(1);
  const PipelineModel model = mlp();
  const TestBatch batch = model.batch(16);
  const auto dense = model.make(2);
  for (const auto& module : dense) module->eval();
  const at::Tensor expected =
      dense[1]->forward({dense[0]->forward(batch.args, {}).output}, {}).output.toTensor().detach();
  comm::run_thread_ranks(4, [&](comm::World& world) {
    const Place place(world.group(), 2);
    const Parallel parallel(model, place, schedule::ScheduleKind::OneFOneB, 1, GetParam());
    runtime::PipelineSchedule pipeline(parallel.stages, schedule::ScheduleKind::OneFOneB, 4,
                                       options_of(model, parallel, place));
    const runtime::StepResult result = eval_on(pipeline, replica_batch(batch, place.replica, 2));
    CHECK_THAT(parallel.stages.front().is_training());
    if (place.pipeline.rank() == 1)
      expect_near("output", result.outputs.toTensor(),
                  expected.chunk(2)[static_cast<std::size_t>(place.replica)], 1e-5);
  });
}

TEST_P(ParallelEverySchedule, StateSurvivesException) {
  const PipelineModel model = mlp();
  const DenseRun dense = run_dense(model, 2, 4, 16, 1, kSeed, 2);
  comm::run_thread_ranks(4, [&](comm::World& world) {
    std::optional<Place> place(std::in_place, world.group(), 2);
    const Parallel parallel(model, *place, schedule::ScheduleKind::ZB1P, 1, GetParam());
    bool thrown = false;
    try {
      runtime::PipelineOptions options = options_of(model, parallel, *place);
      int weights = 0;
      options.execution.custom[schedule::ActionKind::BackwardWeight] =
          [&](const schedule::Action&, const std::function<void()>& run_default) {
            if (++weights == 3 && world.rank().value == 1) throw std::runtime_error("broken on purpose");
            run_default();
          };
      step_on(runtime::PipelineSchedule(parallel.stages, schedule::ScheduleKind::ZB1P, 4, options),
              replica_batch(model.batch(16), place->replica, 2));
      place->across.barrier();  // ranks that had already finished learn of the failure here
      world.group().barrier();
    } catch (const std::exception&) {
      thrown = true;
    }
    CHECK_THAT(thrown);
    world.rebuild();
    place.emplace(world.group(), 2);
    // The same modules with new groups.
    std::vector<runtime::PipelineStage> stages;
    for (const runtime::PipelineStage& stage : parallel.stages) {
      for (const value::NamedTensor& item : stage.module().parameters())
        item.tensor.mutable_grad() = at::Tensor();
      stages.emplace_back(std::shared_ptr<runtime::StageModule>(std::shared_ptr<void>(), &stage.module()),
                          stage.index(), 2, at::kCPU, place->pipeline);
    }
    runtime::PipelineOptions options = options_of(model, parallel, *place);
    if (parallel.sharded) {
      parallel.sharded->recover(place->across);
    } else {
      parallel.replicated->recover(place->across);
    }
    runtime::PipelineSchedule pipeline(stages, schedule::ScheduleKind::ZB1P, 4, options);
    step_on(pipeline, replica_batch(model.batch(16), place->replica, 2));
    for (const runtime::PipelineStage& stage : pipeline.stages())
      expect_near("gradient of", parallel.gradients(stage), dense.gradients[stage.index().index()]);
  });
}

}  // namespace
}  // namespace penstock::test
