// The loss curve depends on the seed and the data, not on the topology or the schedule: every topology is
// compared with one rank.
#include "small_run.h"
#include "support/temp_dir.h"

#include <penstock/base/error.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace penstock::train {
namespace {

using test::small_options;
using test::small_run;
using test::Topology;
using test::with;

void expect_close(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  std::vector<double> differences;
  for (std::size_t i = 0; i < losses.size(); ++i)
    differences.push_back(std::abs(losses[i] - expected[i]) / expected[i]);
  EXPECT_THAT(differences, testing::Each(testing::Le(1e-4)));
}

TEST(TrainLossCurve, DoesNotDependOnTopology) {
  at::set_num_threads(1);
  const RunResult alone = small_run(with({1, 1, 1, 1, "GPipe"}), nullptr, true);
  ASSERT_EQ(alone.losses.size(), 20U);
  EXPECT_LT(alone.losses.back(), 0.98 * alone.losses.front());
  for (const Topology& topology : {Topology{1, 1, 1, 4, "1F1B"},
                                   Topology{2, 1, 1, 4, "1F1B"},
                                   Topology{2, 1, 1, 8, "GPipe"},
                                   Topology{3, 1, 1, 4, "ZB1P"},
                                   Topology{2, 1, 2, 4, "Interleaved1F1B"},
                                   Topology{2, 1, 3, 4, "LoopedBFS"},
                                   Topology{2, 1, 2, 4, "ZBVZeroBubble"},
                                   Topology{2, 1, 2, 4, "DualPipeV"},
                                   Topology{6, 1, 1, 3, "ZB2P"},
                                   Topology{1, 2, 1, 4, "1F1B"},
                                   Topology{2, 2, 1, 2, "1F1B"},
                                   Topology{2, 2, 2, 4, "ZBVZeroBubble"},
                                   Topology{1, 2, 1, 4, "1F1B", Sharding::Full},
                                   Topology{2, 2, 2, 4, "ZBVZeroBubble", Sharding::Full},
                                   Topology{1, 1, 1, 2, "1F1B", Sharding::None, 2},
                                   Topology{2, 2, 1, 2, "ZB1P", Sharding::None, 2},
                                   Topology{2, 2, 1, 2, "1F1B", Sharding::Full, 2},
                                   Topology{2, 2, 1, 2, "GPipe", Sharding::Gradients},
                                   Topology{2, 2, 2, 4, "Interleaved1F1B", Sharding::Gradients},
                                   Topology{2, 2, 2, 4, "DualPipeV", Sharding::Gradients, 2},
                                   Topology{2, 2, 2, 4, "ZBVZeroBubble", Sharding::Optimizer},
                                   Topology{3, 2, 1, 4, "ZB1P", Sharding::Optimizer},
                                   Topology{2, 1, 1, 4, "auto"},
                                   Topology{2, 1, 2, 4, "auto"}}) {
    SCOPED_TRACE(std::string(topology.schedule) + " pp " + std::to_string(topology.pp) + " dp " +
                 std::to_string(topology.dp) + " V " + std::to_string(topology.stages_per_rank) + " M " +
                 std::to_string(topology.microbatches));
    const RunResult result = small_run(with(topology), nullptr, true);
    expect_close(result.losses, alone.losses);
    ASSERT_EQ(result.parameters.size(), alone.parameters.size());
    for (const auto& [name, tensor] : alone.parameters)
      EXPECT_TRUE(at::allclose(result.parameters.at(name), tensor, 1e-3, 2e-4)) << name;
  }
}

TEST(TrainLossCurve, IsBitwiseEqualInRunsWithSameSeed) {
  at::set_num_threads(1);
  RunOptions options = with({2, 2, 1, 2, "1F1B"});
  options.grad_clip = 0.5;
  const auto first = small_run(options, nullptr, true, 0.1), second = small_run(options, nullptr, true, 0.1);
  EXPECT_EQ(first.losses, second.losses);
  for (const auto& [name, tensor] : first.parameters)
    EXPECT_TRUE(at::equal(tensor, second.parameters.at(name))) << name;
  options.seed = 2;
  EXPECT_NE(small_run(options, nullptr, false, 0.1).losses, first.losses);
}

TEST(TrainLossCurve, MatchesFullBatchWithAccumulationClippingDecayAndRecomputation) {
  at::set_num_threads(1);
  RunOptions options = with({1, 1, 1, 1, "GPipe"});
  options.grad_clip = 0.5;
  options.optimizer.weight_decay = 0.1;
  options.learning_rate = {LearningRateKind::Cosine, 0.003, 15};
  const auto expected = small_run(options).losses;
  RunOptions other = with({2, 1, 1, 2, "1F1B"}, options);
  other.accumulate = 4;
  other.parallel.recompute = true;
  expect_close(small_run(other).losses, expected);
  other = with({2, 2, 1, 2, "ZB1P"}, options);
  other.accumulate = 2;
  expect_close(small_run(other).losses, expected);
  for (const Sharding sharding : {Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Full})
    expect_close(small_run(with({2, 2, 1, 2, "1F1B", sharding, 2}, options)).losses, expected);
}

// Masks of sharded attention depend on the head, not on the rank that has it.
TEST(TrainLossCurve, WithDropoutDoesNotDependOnNumberOfTensorParallelRanks) {
  at::set_num_threads(1);
  const auto losses = [](double dropout, const Topology& topology, bool recompute = false) {
    std::vector<double> result;
    RunOptions options = with(topology);
    options.parallel.recompute = recompute;
    comm::run_thread_ranks(options.parallel.ranks(), [&](comm::World& world) {
      const Vocabulary vocabulary(test::small_text());
      models::GptOptions gpt = test::small_gpt(vocabulary);
      gpt.heads = 4;
      gpt.dropout = dropout;
      const auto data = text_data(test::small_text(), vocabulary, {.length = gpt.context});
      const RunResult run_result = run(world, *gpt_model(gpt, 1), *data, options);
      if (world.rank().value == 0) result = run_result.losses;
    });
    return result;
  };
  const Topology two{1, 1, 1, 2, "GPipe", Sharding::None, 2}, four{1, 1, 1, 2, "GPipe", Sharding::None, 4};
  const std::vector<double> expected = losses(0.2, two);
  EXPECT_EQ(losses(0.2, two), expected);
  EXPECT_EQ(losses(0.2, two, /*recompute=*/true), expected);
  expect_close(losses(0.2, four), expected);
  EXPECT_GT(std::abs(expected[0] - losses(0, two)[0]), 1e-4);
  expect_close(losses(0.2, {2, 1, 1, 2, "1F1B", Sharding::None, 4}),
               losses(0.2, {2, 1, 1, 2, "1F1B", Sharding::None, 2}));
}

TEST(TrainLossCurve, InBfloat16StaysNearFloat32AndDecreases) {
  at::set_num_threads(1);
  const auto expected = small_run(with({2, 1, 1, 4, "1F1B"})).losses;
  RunOptions options = with({2, 1, 1, 4, "1F1B"});
  options.precision = Precision::Bfloat16;
  const auto losses = small_run(options).losses;
  EXPECT_NE(losses, expected);
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 0.05 * expected[i]) << i;
}

class RecordingObserver : public Observer {
 public:
  void on_step(const StepRecord& record) override { records.push_back(record); }
  void on_evaluation(std::int64_t step, double loss) override { evaluations[step] = loss; }
  std::vector<StepRecord> records;
  std::map<std::int64_t, double> evaluations;
};

TEST(TrainRun, ReportsSameStepsAndValidationsInEveryTopology) {
  at::set_num_threads(1);
  RunOptions options = with({1, 1, 1, 2, "GPipe"});
  options.steps = 6;
  options.eval_every = 3;
  RecordingObserver one, many;
  small_run(options, &one);
  small_run(with({2, 2, 1, 2, "1F1B"}, options), &many);
  ASSERT_EQ(one.records.size(), 6U);
  ASSERT_EQ(many.records.size(), 6U);
  ASSERT_EQ(one.evaluations.size(), 2U);
  for (const auto& [step, loss] : one.evaluations) EXPECT_NEAR(many.evaluations.at(step), loss, 1e-4 * loss);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(many.records[i].grad_norm, one.records[i].grad_norm, 1e-3 * one.records[i].grad_norm);
    EXPECT_EQ(many.records[i].peak_memory.size(), 4U);
  }
}

TEST(TrainRun, LogEverySelectsStepsAndKeepsLosses) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions options = with({2, 1, 1, 2, "1F1B"});
  options.steps = 11;
  options.eval_every = 5;
  RecordingObserver all, some;
  const RunResult expected = small_run(options, &all, true);
  options.log_every = 4;
  options.log_json = dir / "log";
  const RunResult result = small_run(options, &some, true);
  std::vector<std::int64_t> steps;
  for (const StepRecord& record : some.records) {
    steps.push_back(record.step);
    const StepRecord& same = all.records.at(static_cast<std::size_t>(record.step - 1));
    EXPECT_EQ(record.loss, same.loss);
    EXPECT_EQ(record.grad_norm, same.grad_norm);
    EXPECT_EQ(record.rate, same.rate);
    EXPECT_GT(record.seconds, 0);
    EXPECT_NEAR(*record.tokens_per_second * record.seconds, 8 * 12, 1e-6);
  }
  // Steps with a validation are logged, too.
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 4, 5, 8, 10, 11}));
  EXPECT_EQ(result.losses.size(), 6U);
  EXPECT_EQ(result.first_step, 1);
  EXPECT_EQ(some.evaluations, all.evaluations);
  for (const auto& [name, tensor] : expected.parameters)
    EXPECT_TRUE(at::equal(result.parameters.at(name), tensor)) << name;
  std::ifstream log(dir / "log");
  steps.clear();
  std::map<std::int64_t, double> validations;
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    steps.push_back(record["step"]);
    if (record.contains("validation_loss")) validations[steps.back()] = record["validation_loss"];
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 4, 5, 8, 10, 11}));
  EXPECT_EQ(validations, all.evaluations);
}

// The idle fraction of two ranks in the trace of a step. The first two processes are the prediction.
double bubble_of_trace(const std::string& path) {
  double busy = 0, end = 0;
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("pid").get<int>() < 2) continue;
    const double duration = event.at("dur");
    if (schedule::parse_action(event.at("name").get<std::string>()).is_compute()) busy += duration;
    end = std::max(end, event.at("ts").get<double>() + duration);
  }
  return 1 - busy / (2 * end);
}

TEST(TrainRun, ReportsBubbleOfMeasuredTimeline) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions options = with({2, 1, 1, 4, "1F1B"});
  options.steps = 3;
  options.trace = dir / "trace.json";
  RecordingObserver recorder;
  small_run(options, &recorder);
  ASSERT_EQ(recorder.records.size(), 3U);
  EXPECT_NEAR(recorder.records.back().bubble, bubble_of_trace(dir / "trace.json"), 1e-3);
  // A single microbatch occupies one of the two ranks at a time.
  RecordingObserver single;
  small_run(with({2, 1, 1, 1, "GPipe"}, options), &single);
  ASSERT_EQ(single.records.size(), 3U);
  for (const StepRecord& record : single.records) {
    EXPECT_GE(record.bubble, 0.5);
    EXPECT_LT(record.bubble, 1);
  }
}

// Calls a function before one action of one rank.
class ActionHook : public RankHook {
 public:
  using Function = std::function<void(const RankState& state)>;

  static test::HookFactory factory(Rank rank, std::int64_t step, std::string action, Function function) {
    return [=](Rank here) {
      return here == rank ? std::make_unique<ActionHook>(step, action, function) : nullptr;
    };
  }
  ActionHook(std::int64_t step, std::string action, Function function)
      : step_(step), action_(std::move(action)), function_(std::move(function)) {}

  void on_action(const schedule::Action& action, const RankState& state) override {
    if (state.step == step_ && to_string(action) == action_) function_(state);
  }

 private:
  std::int64_t step_;
  std::string action_;
  Function function_;
};

TEST(TrainRun, StopsAtNonFiniteLossAndReportsStageAndMicrobatch) {
  at::set_num_threads(1);
  const auto hooks = ActionHook::factory(Rank(1), 3, "1F2", [](const RankState& state) {
    const at::NoGradGuard no_grad;
    for (const value::NamedTensor& item : state.stages.at(StageId(1))->parameters())
      item.tensor.fill_(std::nan(""));
  });
  try {
    small_run(with({2, 1, 1, 4, "1F1B"}), nullptr, false, 0, hooks);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("step 3"), testing::HasSubstr("stage 1"),
                                             testing::HasSubstr("microbatch 0"), testing::HasSubstr("nan"),
                                             testing::HasSubstr("parameter 'token.weight' contains nan")));
  }
  RunOptions options = with({2, 1, 1, 4, "1F1B"});
  options.learning_rate.peak = 1e12;
  options.optimizer.kind = OptimizerKind::Sgd;
  options.on_nan = NanPolicy::Skip;
  RecordingObserver recorder;
  small_run(options, &recorder);
  EXPECT_TRUE(recorder.records.back().skipped);
}

TEST(TrainRun, FaultOfOneRankEndsRunWithCause) {
  at::set_num_threads(1);
  const auto hooks = ActionHook::factory(Rank(1), 2, "1B0",
                                         [](const RankState&) { throw Error("injected fault in step 2"); });
  try {
    small_run(with({2, 1, 1, 4, "1F1B"}), nullptr, false, 0, hooks);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("step 2"), testing::HasSubstr("rank 1"),
                               testing::HasSubstr("1B0"), testing::HasSubstr("injected fault in step 2")));
  }
}

// The phases and actions of each rank, in order.
class PhaseHook : public RankHook {
 public:
  PhaseHook(std::vector<std::string>& calls) : calls_(calls) {}
  void on_phase(RunPhase phase, const RankState& state) override {
    calls_.push_back(step_text(state) + " " + std::string(to_string(phase)) + " " +
                     std::to_string(state.stages.size()));
  }
  void on_action(const schedule::Action& action, const RankState& state) override {
    if (action.is_compute()) calls_.push_back(step_text(state) + " " + to_string(action));
  }

 private:
  static std::string step_text(const RankState& state) {
    return state.step ? std::to_string(*state.step) : "no step";
  }

  std::vector<std::string>& calls_;
};

TEST(TrainRun, HooksFollowPhasesAndActionsOfTheirRank) {
  at::set_num_threads(1);
  RunOptions options = with({2, 1, 1, 2, "GPipe"});
  options.steps = 2;
  std::vector<std::string> calls[2];
  small_run(options, nullptr, false, 0,
            [&](Rank rank) { return std::make_unique<PhaseHook>(calls[rank.value]); });
  EXPECT_THAT(calls[1], testing::ElementsAre("no step setup 0", "1 step 1", "1 1F0", "1 1F1", "1 1B0",
                                             "1 1B1", "1 update 1", "2 step 1", "2 1F0", "2 1F1", "2 1B0",
                                             "2 1B1", "2 update 1", "2 end 1"));
  EXPECT_EQ(calls[0].size(), calls[1].size());
}

}  // namespace
}  // namespace penstock::train
