// Recomputation of modules: bitwise equal to a run without it, in every schedule, and with less memory.
#include "archive_run.h"
#include "small_run.h"
#include "support/error_message.h"
#include "support/temp_dir.h"

#include <penstock/base/error.h>

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

namespace penstock::train {
namespace {

using test::small_run;
using test::TempDir;
using test::Topology;
using test::with;

void expect_same(const RunResult& result, const RunResult& expected) {
  EXPECT_EQ(result.losses, expected.losses);
  ASSERT_EQ(result.parameters.size(), expected.parameters.size());
  for (const auto& [name, tensor] : expected.parameters)
    EXPECT_TRUE(at::equal(result.parameters.at(name), tensor)) << name;
}

RunOptions short_run(const Topology& topology) {
  RunOptions options = with(topology);
  options.steps = 3;
  return options;
}

TEST(TrainRecompute, ModulesOfGptGiveBitwiseSameRunInEverySchedule) {
  at::set_num_threads(1);
  std::size_t turn = 0;
  const std::vector<std::vector<std::string>> patterns = {{"blocks.*"},
                                                          {"blocks.*.mlp", "blocks.1.attention"}};
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    if (!info.has_backward) continue;
    const std::string name(info.name);
    SCOPED_TRACE(name);
    RunOptions options = short_run({2, 1, info.default_stages_per_rank, 4, name.c_str()});
    const RunResult expected = small_run(options, nullptr, true, 0.1);
    options.parallel.recompute_modules = patterns[turn++ % 2];
    expect_same(small_run(options, nullptr, true, 0.1), expected);
  }
  EXPECT_GT(turn, 8U);
}

TEST(TrainRecompute, CombinesWithOtherFeatures) {
  at::set_num_threads(1);
  const auto expect_bitwise = [](RunOptions options, double dropout) {
    const RunResult expected = small_run(options, nullptr, true, dropout);
    options.parallel.recompute_modules = {"blocks.*"};
    expect_same(small_run(options, nullptr, true, dropout), expected);
  };
  for (const Sharding sharding : {Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Full}) {
    SCOPED_TRACE(to_string(sharding));
    RunOptions options = short_run({2, 2, 1, 2, "ZB1P", sharding});
    options.accumulate = 2;
    options.grad_clip = 0.5;
    expect_bitwise(options, 0.1);
  }
  {
    SCOPED_TRACE("tensor parallel");
    expect_bitwise(short_run({2, 1, 1, 2, "1F1B", Sharding::None, 2}), 0);
  }
  for (const ParameterDtype dtype : {ParameterDtype::Auto, ParameterDtype::Bfloat16}) {
    SCOPED_TRACE(to_string(dtype));
    RunOptions options = short_run({2, 2, 1, 2, "1F1B", Sharding::Full});
    options.precision = Precision::Bfloat16;
    options.parameter_dtype = dtype;
    expect_bitwise(options, 0.1);
  }
  SCOPED_TRACE("frozen, validation");
  RunOptions options = short_run({1, 1, 1, 2, "GPipe"});
  options.parameters.freeze = {"token", "blocks.0"};
  options.eval_every = 1;
  expect_bitwise(options, 0.1);
}

// The bytes that a microbatch keeps in each stage, as measured.
std::vector<std::uint64_t> kept_bytes(RunOptions options, const std::vector<std::string>& modules) {
  const TempDir dir;
  options.parallel.recompute_modules = modules;
  options.profile = dir / "costs.toml";
  small_run(options);
  std::ifstream file(dir / "costs.toml");
  std::stringstream text;
  text << file.rdbuf();
  const std::string costs = text.str();
  const std::regex line("\nactivation_bytes = ([0-9]+)");
  std::vector<std::uint64_t> bytes;
  for (std::sregex_iterator it(costs.begin(), costs.end(), line), end; it != end; ++it)
    bytes.push_back(std::stoull((*it)[1]));
  return bytes;
}

TEST(TrainRecompute, ModulesKeepLessMemory) {
  at::set_num_threads(1);
  RunOptions options = short_run({1, 1, 1, 1, "GPipe"});
  options.batch = 32;
  const std::uint64_t all = kept_bytes(options, {}).at(0), blocks = kept_bytes(options, {"blocks.*"}).at(0),
                      mlps = kept_bytes(options, {"blocks.*.mlp"}).at(0);
  EXPECT_LT(blocks, all / 2);
  EXPECT_LT(mlps, all - all / 10);
  EXPECT_LT(blocks, mlps);
}

TEST(TrainRecompute, ModulesOfArchivesGiveBitwiseSameRunInEveryTopology) {
  at::set_num_threads(1);
  for (const Layout& layout : layouts()) {
    for (const std::string pattern : {"layers.*", "layers.*.up"}) {
      SCOPED_TRACE(text_of(layout) + ", " + pattern);
      RunOptions options;
      options.parallel = layout.parallel;
      options.accumulate = layout.accumulate;
      options.steps = 3;
      options.batch = 8;
      const RunResult expected = train_archive({}, options);
      options.parallel.recompute_modules = {pattern};
      expect_same(train_archive({}, options), expected);
    }
  }
}

// The head is the token table, which is read outside of the recomputed module, too: its gradients are added
// in another order, and reduced after both.
TEST(TrainRecompute, ModulesMayShareParametersWithOthers) {
  at::set_num_threads(1);
  for (const Layout& layout : layouts()) {
    if (layout.parallel.pp > 1) continue;
    for (const Sharding sharding : {Sharding::None, Sharding::Gradients, Sharding::Full}) {
      RunOptions options;
      options.parallel = layout.parallel;
      options.parallel.dp = 2;
      options.parallel.microbatches = 2;
      options.parallel.sharding = sharding;
      options.steps = 3;
      options.batch = 8;
      SCOPED_TRACE(text_of({options.parallel}));
      const RunResult expected = train_archive({}, options);
      options.parallel.recompute_modules = {"head"};
      const RunResult result = train_archive({}, options);
      for (std::size_t i = 0; i < expected.losses.size(); ++i)
        EXPECT_NEAR(result.losses.at(i), expected.losses[i], 1e-5);
    }
  }
}

// Validation shows the running means of batch norm, which the second run of a module must not update again.
TEST(TrainRecompute, BuffersAreUpdatedOnce) {
  at::set_num_threads(1);
  const auto train = [](const std::vector<std::string>& modules) {
    RunOptions options;
    options.parallel = {.pp = 1, .microbatches = 2, .recompute_modules = modules};
    options.steps = 3;
    options.batch = 8;
    options.eval_every = 1;
    RunResult result;
    comm::run_thread_ranks(1, [&](comm::World& world) {
      const ArchiveModel model = archive_model({.file = recipe_file("norm.pt2"), .loss = LossKind::Mse});
      const auto data = tensor_data(checkpoint::load_safetensors(recipe_file("mlp.safetensors")),
                                    {model.positional, model.keywords, 0.2});
      result = run(world, *model.model, *data, options);
    });
    return result;
  };
  const RunResult expected = train({}), result = train({"*"});
  EXPECT_EQ(result.losses, expected.losses);
  EXPECT_EQ(result.validation_loss, expected.validation_loss);
}

TEST(TrainRecompute, RefusesWhatCannotBeRecomputed) {
  RunOptions options = short_run({1, 1, 1, 2, "GPipe"});
  const auto gpt = gpt_model({.vocabulary = 10, .layers = 2}, 1);
  options.parallel.recompute_modules = {"block.*"};
  EXPECT_ERROR(check_before_start(*gpt, options), UsageError, "matches 'block.*'");
  options.parallel.recompute_modules = {"token"};
  EXPECT_ERROR(check_before_start(*gpt, options), UsageError, "matches 'token'");
  const ArchiveModel archive = archive_model({.file = recipe_file("language.pt2")});
  options.parallel.recompute_modules = {"layer.*"};
  EXPECT_ERROR(check_before_start(*archive.model, options), UsageError, "matches 'layer.*'");
  options.parallel.recompute_modules = {"blocks.*"};
  options.parallel.recompute = true;
  EXPECT_ERROR(check_before_start(*gpt, options), UsageError, "exclude each other");
}

}  // namespace
}  // namespace penstock::train
