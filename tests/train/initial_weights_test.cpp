// Runs that start from given weights, in every topology. With a learning rate of 0, the parameters after a
// step are the weights themselves.
#include "small_run.h"
#include "support/error_message.h"
#include "support/temp_dir.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/safetensors.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::train {
namespace {

using test::small_run;
using test::TempDir;
using test::Topology;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

class Messages : public Observer {
 public:
  void on_message(const std::string& text) override { all += text + "\n"; }
  std::string all;
};

RunOptions still_options(const Topology& topology, const std::string& path) {
  RunOptions options = test::with(topology);
  options.steps = 1;
  options.learning_rate.peak = 0;
  options.init = {.path = path, .renames = {{"model", ""}, {"layers.*", "blocks.*"}}};
  return options;
}

// Other values than those of any seed, as float64, under other names.
Tensors stored_weights() {
  RunOptions options = test::small_options();
  options.steps = 1;
  options.parallel.microbatches = 1;
  Tensors stored;
  at::manual_seed(5);
  for (const auto& [name, tensor] : small_run(options, nullptr, true).parameters) {
    const bool block = name.starts_with("blocks.");
    stored["model." + (block ? "layers" + name.substr(6) : name)] =
        (0.1 * at::randn(tensor.sizes(), at::kDouble)).to(at::kFloat).to(at::kDouble);
  }
  return stored;
}

std::string model_name(const std::string& stored) {
  const std::string name = stored.substr(6);
  return name.starts_with("layers.") ? "blocks" + name.substr(6) : name;
}

TEST(TrainInitialWeights, AreLoadedInEveryTopology) {
  at::set_num_threads(1);
  const TempDir dir;
  const Tensors stored = stored_weights();
  checkpoint::save_safetensors(dir / "w.safetensors", stored);
  const std::vector<Topology> topologies = {{1, 1, 1, 2, "GPipe"},
                                            {2, 1, 2, 4, "ZBVZeroBubble"},
                                            {2, 2, 1, 2, "1F1B", Sharding::Full},
                                            {2, 1, 1, 2, "1F1B", Sharding::None, 2},
                                            {1, 2, 1, 2, "1F1B", Sharding::Full, 2},
                                            {2, 2, 1, 2, "ZB1P", Sharding::Gradients},
                                            {1, 2, 1, 2, "1F1B", Sharding::Optimizer}};
  std::optional<double> loss;
  for (const Topology& topology : topologies) {
    SCOPED_TRACE(topology.schedule);
    Messages messages;
    const RunResult result = small_run(still_options(topology, dir / "w.safetensors"), &messages, true);
    EXPECT_THAT(messages.all, HasSubstr("initial weights from " + dir / "w.safetensors"));
    ASSERT_EQ(result.parameters.size(), stored.size());
    for (const auto& [name, tensor] : stored)
      EXPECT_TRUE(at::equal(result.parameters.at(model_name(name)), tensor.to(at::kFloat))) << name;
    EXPECT_NEAR(result.losses.at(0), loss.value_or(result.losses.at(0)), 1e-5 * result.losses.at(0));
    loss = result.losses.at(0);
  }
}

TEST(TrainInitialWeights, MustMatchUnlessPartial) {
  at::set_num_threads(1);
  const TempDir dir;
  Tensors stored = stored_weights();
  const at::Tensor token = stored.at("model.token.weight");
  stored["model.new.weight"] = at::ones({2});
  const auto shortened = std::find_if(stored.begin(), stored.end(), [](const auto& item) {
    return item.first.starts_with("model.layers.0.") && item.second.dim() == 2;
  });
  ASSERT_NE(shortened, stored.end());
  const std::string reshaped = model_name(shortened->first);
  shortened->second = shortened->second.slice(0, 1).contiguous();
  const std::string missing = [&] {
    for (const auto& [name, tensor] : stored)
      if (name.starts_with("model.layers.2.")) return name;
    return std::string();
  }();
  stored.erase(missing);
  checkpoint::save_safetensors(dir / "w.safetensors", stored);
  const Topology topology{2, 1, 1, 2, "1F1B"};
  RunOptions options = still_options(topology, dir / "w.safetensors");
  for (const std::string& name : {model_name(missing), std::string("new.weight"), reshaped}) {
    EXPECT_ERROR(small_run(options), Error, name);
    const Vocabulary vocabulary(test::small_text());
    const auto model = gpt_model(test::small_gpt(vocabulary), 1);
    EXPECT_ERROR(check_before_start(*model, options), UsageError, name);
  }
  options.init->allow_partial = true;
  Messages messages;
  const RunResult result = small_run(options, &messages, true);
  EXPECT_TRUE(at::equal(result.parameters.at("token.weight"), token.to(at::kFloat)));
  EXPECT_THAT(messages.all,
              HasSubstr("not in the weights, initial values of the model kept: " + model_name(missing)));
  EXPECT_THAT(messages.all, HasSubstr("in the weights but not in the model: new.weight"));
  EXPECT_THAT(messages.all, HasSubstr(reshaped + ": "));
}

TEST(TrainInitialWeights, CheckpointTakesPrecedence) {
  at::set_num_threads(1);
  const TempDir dir;
  checkpoint::save_safetensors(dir / "w.safetensors", stored_weights());
  const Topology topology{2, 1, 1, 2, "1F1B"};
  const auto options_of = [&](std::int64_t steps, const std::string& run) {
    RunOptions options = test::with(topology);
    options.steps = steps;
    options.init = still_options(topology, dir / "w.safetensors").init;
    options.checkpoint = {.directory = dir / run, .resume = true};
    return options;
  };
  // Resumes without a checkpoint: a new run from the weights.
  const auto whole = small_run(options_of(4, "whole"), nullptr, true);
  EXPECT_EQ(whole.losses.size(), 4U);
  small_run(options_of(2, "parts"));
  const auto rest = small_run(options_of(4, "parts"), nullptr, true);
  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
  for (const auto& [name, tensor] : whole.parameters)
    EXPECT_TRUE(at::equal(rest.parameters.at(name), tensor)) << name;
  // A checkpoint gives its weights, but not its optimizer states and step.
  RunOptions from_run = still_options(topology, dir / "whole");
  from_run.init->renames.clear();
  const auto copied = small_run(from_run, nullptr, true);
  EXPECT_EQ(copied.first_step, 1);
  for (const auto& [name, tensor] : whole.parameters)
    EXPECT_TRUE(at::equal(copied.parameters.at(name), tensor)) << name;
}

}  // namespace
}  // namespace penstock::train
