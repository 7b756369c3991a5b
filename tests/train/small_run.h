// A small training run.
#pragma once

#include <penstock/comm/thread_ranks.h>
#include <penstock/train/trainer.h>

#include <functional>
#include <memory>
#include <mutex>

namespace penstock::test {

inline models::GptOptions small_gpt(const train::Vocabulary& vocabulary) {
  return {.vocabulary = vocabulary.size(), .context = 12, .layers = 4, .heads = 2, .width = 16};
}

inline const std::string& small_text() {
  static const std::string text = train::generated_text(20'000);
  return text;
}

using HookFactory = std::function<std::unique_ptr<train::RankHook>(Rank rank)>;

//! The result on rank 0 of a run with thread ranks.
inline train::RunResult small_run(const train::RunOptions& options, train::Observer* observer = nullptr,
                                  bool gather = false, double dropout = 0,
                                  const HookFactory& make_hook = nullptr, c10::Device device = c10::kCPU) {
  train::RunResult result;
  const auto body = [&](comm::World& world) {
    const train::Vocabulary vocabulary(small_text());
    models::GptOptions gpt = small_gpt(vocabulary);
    gpt.dropout = dropout;
    const auto data =
        train::text_data(small_text(), vocabulary, {.length = gpt.context, .seed = options.seed});
    const auto model = train::gpt_model(gpt, options.seed);
    const auto hook = make_hook ? make_hook(world.rank()) : nullptr;
    auto mine = train::run(world, *model, *data, options,
                           {.observer = observer, .hook = hook.get(), .gather_parameters = gather});
    if (world.rank().value == 0) result = std::move(mine);
  };
  comm::run_thread_ranks(options.parallel.ranks(), body, {.device = device});
  return result;
}

inline train::RunOptions small_options() {
  train::RunOptions options;
  options.steps = 20;
  options.batch = 8;
  options.learning_rate = {train::LearningRateKind::Constant, 0.004, 20};
  return options;
}

struct Topology {
  int pp, dp, stages_per_rank, microbatches;
  const char* schedule;
  train::Sharding sharding = train::Sharding::None;
  int tp = 1;
};

inline train::RunOptions with(const Topology& topology, train::RunOptions options = small_options()) {
  options.parallel.pp = topology.pp;
  options.parallel.dp = topology.dp;
  options.parallel.stages_per_rank = topology.stages_per_rank;
  options.parallel.microbatches = topology.microbatches;
  options.parallel.schedule = train::parse_schedule_choice(topology.schedule);
  options.parallel.sharding = topology.sharding;
  options.parallel.tp = topology.tp;
  return options;
}

}  // namespace penstock::test
