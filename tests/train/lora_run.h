// Runs with low-rank adapters, for the tests of LoRA.
#pragma once

#include "train/archive_run.h"
#include "train/small_run.h"

#include <penstock/graph/pt2.h>

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::train {

using Tensors = std::map<std::string, at::Tensor>;

//! The options of a recipe of make_lora.py.
inline RunOptions options_for(const std::string& recipe, const Layout& layout) {
  RunOptions options;
  if (recipe == "sgd") {
    options.optimizer = {.kind = OptimizerKind::Sgd, .momentum = 0.5};
    options.learning_rate.peak = 0.05;
  } else {
    options.optimizer = {.kind = OptimizerKind::AdamW, .weight_decay = 0.1};
    options.learning_rate.peak = 0.02;
  }
  options.parallel = layout.parallel;
  options.accumulate = layout.accumulate;
  options.steps = kSteps;
  options.batch = 8;
  return options;
}

//! The losses of make_lora.py, by recipe.
inline std::map<std::string, std::vector<double>> python_losses(const std::string& name) {
  std::map<std::string, std::vector<double>> losses;
  std::ifstream file(recipe_file(name));
  std::string recipe;
  double step = 0, loss = 0;
  while (file >> recipe >> step >> loss) losses[recipe].push_back(loss);
  return losses;
}

//! The parameters and buffers of an exported model.
inline Tensors archive_weights(const std::string& model) {
  const graph::Pt2Archive archive(recipe_file(model + ".pt2"));
  Tensors weights;
  for (const graph::Slot& slot : archive.graph().slots)
    if (slot.kind != graph::Slot::Kind::Constant)
      weights[slot.names[0]] = archive.load(slot.names[0]).detach();
  return weights;
}

inline std::vector<checkpoint::Piece> state_of(const Tensors& weights) {
  std::vector<checkpoint::Piece> state;
  for (const auto& [name, value] : weights) state.push_back(checkpoint::full_piece(name, value));
  return state;
}

//! Trains a GPT on a small text.
inline RunResult gpt_run(const models::GptOptions& gpt, const RunOptions& options,
                         const std::optional<LoraOptions>& lora) {
  RunResult result;
  comm::run_thread_ranks(options.parallel.ranks(), [&](comm::World& world) {
    const Vocabulary vocabulary(test::small_text());
    const auto data =
        text_data(test::small_text(), vocabulary, {.length = gpt.context, .seed = options.seed});
    const auto model = gpt_model(gpt, options.seed, lora);
    RunResult mine = run(world, *model, *data, options, {.gather_parameters = true});
    if (world.rank().value == 0) result = std::move(mine);
  });
  return result;
}

//! Expects the losses and parameters of a run on one rank. The optimizer enlarges rounding of small
//! gradients.
inline void expect_same_training(const RunResult& result, const RunResult& alone) {
  ASSERT_EQ(result.losses.size(), alone.losses.size());
  for (std::size_t i = 0; i < alone.losses.size(); ++i)
    EXPECT_NEAR(result.losses[i], alone.losses[i], 2e-4) << i;
  ASSERT_EQ(result.parameters.size(), alone.parameters.size());
  for (const auto& [name, value] : alone.parameters)
    EXPECT_TRUE(at::allclose(result.parameters.at(name), value, 1e-2, 2e-3)) << name;
}

inline std::string text_of(const test::Topology& topology) {
  return "pp " + std::to_string(topology.pp) + " dp " + std::to_string(topology.dp) + " tp " +
         std::to_string(topology.tp);
}

}  // namespace penstock::train
