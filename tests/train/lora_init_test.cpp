// Runs that start from a run with LoRA: from its adapters, merged into their base. Compared with the formula,
// and bit for bit with runs that start from a file of the merged weights.
#include "support/error_message.h"
#include "support/temp_dir.h"
#include "train/lora_run.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>
#include <penstock/models/gpt.h>
#include <penstock/train/adapters.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace penstock::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const LoraOptions kFirstLora{.patterns = {"layers.*.up", "layers.1.down"}, .rank = 4, .alpha = 6, .seed = 7};
const LoraOptions kSecondLora{.patterns = {"layers.0", "layers.1.up"}, .rank = 2, .alpha = 1, .seed = 8};

RunOptions source_options(const std::filesystem::path& directory) {
  RunOptions options;
  options.optimizer = {.kind = OptimizerKind::Sgd};
  options.learning_rate.peak = 0.1;
  options.steps = 4;
  options.batch = 8;
  options.parallel = layouts()[1].parallel;
  options.checkpoint.directory = directory;
  return options;
}

// A run whose parameters stay those from which it starts.
RunOptions still_options(const Layout& layout, const std::filesystem::path& init) {
  RunOptions options = source_options({});
  options.checkpoint = {};
  options.learning_rate.peak = 0;
  options.steps = 1;
  options.parallel = layout.parallel;
  options.accumulate = layout.accumulate;
  options.init = InitialWeights{.path = init};
  return options;
}

// W + scale * B A.
Tensors with_adapters(Tensors weights, const Tensors& trained, double scale) {
  std::size_t adapted = 0;
  for (auto& [name, value] : weights) {
    const std::string module = name.substr(0, name.rfind('.'));
    const auto a = trained.find(module + ".lora_A.weight");
    if (a == trained.end() || !name.ends_with(".weight")) continue;
    value = value + scale * trained.at(module + ".lora_B.weight").matmul(a->second);
    ++adapted;
  }
  EXPECT_GT(adapted, 0U);
  return weights;
}

void expect_close(const Tensors& got, const Tensors& expected) {
  for (const auto& [name, value] : expected)
    EXPECT_TRUE(at::allclose(got.at(name), value, 1e-5, 1e-6)) << name;
}

void expect_equal(const Tensors& got, const Tensors& expected) {
  for (const auto& [name, value] : expected) EXPECT_TRUE(at::equal(got.at(name), value)) << name;
}

class Messages : public Observer {
 public:
  void on_message(const std::string& text) override { all += text + "\n"; }
  std::string all;
};

TEST(TrainLoraInit, ExportedModelsStartFromMergedWeightsInEveryTopology) {
  at::set_num_threads(1);
  const test::TempDir dir;
  const RunResult source = train_archive({.archive = {.lora = kFirstLora}}, source_options(dir / "lora"));
  const Tensors expected = with_adapters(archive_weights("language"), source.parameters, 1.5);
  // The two-step way: a file of merged weights, as `checkpoint convert --merged` writes it.
  const auto adapters = std::make_shared<const checkpoint::Checkpoint>(*source.checkpoint);
  const Tensors weights = archive_weights("language");
  const MergedWeights merged(
      adapters, state_of(weights),
      [&](const std::string& name, std::optional<std::uint64_t>) { return weights.at(name); });
  Tensors stored;
  for (const auto& [name, value] : weights) stored[name] = merged.read(name);
  checkpoint::save_safetensors(dir / "merged.safetensors", stored);
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    Messages messages;
    const RunResult direct = train_archive({}, still_options(layout, dir / "lora"), &messages);
    EXPECT_THAT(messages.all, AllOf(HasSubstr("initial weights from " + source.checkpoint->string()),
                                    HasSubstr("LoRA of rank 4 for 5 layers, merged into its base")));
    expect_close(direct.parameters, expected);
    const RunResult stepwise = train_archive({}, still_options(layout, dir / "merged.safetensors"));
    expect_equal(direct.parameters, stepwise.parameters);
    EXPECT_EQ(direct.losses, stepwise.losses);
    // New adapters on the merged weights.
    const RunResult adapted =
        train_archive({.archive = {.lora = kSecondLora}}, still_options(layout, dir / "lora"));
    expect_equal(adapted.parameters, stored);
    EXPECT_EQ(adapted.losses, direct.losses);
  }
}

TEST(TrainLoraInit, RunsContainStatisticsThatTheSourceChanged) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions options = source_options(dir / "lora");
  options.parallel = layouts()[0].parallel;
  const ArchiveOptions plain{.loss = LossKind::Mse};
  ArchiveOptions adapted = plain;
  adapted.lora = LoraOptions{.patterns = {"0"}};
  const RunResult source = train_archive({.model = "norm", .archive = adapted, .data = "mlp"}, options);
  RunOptions next = still_options(layouts()[0], dir / "lora");
  next.checkpoint.directory = dir / "next";
  const RunResult started = train_archive({.model = "norm", .archive = plain, .data = "mlp"}, next);
  // The step of the new run changes the statistics again, from those of the source.
  const checkpoint::Checkpoint before(*source.checkpoint), after(*started.checkpoint);
  std::size_t counters = 0;
  for (const checkpoint::StoredTensor& tensor : before.tensors()) {
    if (!tensor.name.ends_with("num_batches_tracked")) continue;
    ++counters;
    EXPECT_EQ(after.read(tensor.name).item<std::int64_t>(),
              before.read(tensor.name).item<std::int64_t>() + 1);
  }
  EXPECT_EQ(counters, 1U);
}

TEST(TrainLoraInit, GptsStartFromTheBaseOfAnotherSeed) {
  at::set_num_threads(1);
  const test::TempDir dir;
  const LoraOptions lora{.patterns = {"blocks.*.attention", "blocks.1.mlp"}, .rank = 3, .alpha = 6};
  RunOptions options = source_options(dir / "lora");
  options.seed = 5;
  const models::GptOptions gpt = test::small_gpt(Vocabulary(test::small_text()));
  const RunResult source = gpt_run(gpt, options, lora);
  models::Gpt base(gpt);
  models::initialize(*base, base->options(), 5);
  Tensors weights;
  for (const auto& item : base->named_parameters()) weights[item.key()] = item.value().detach();
  const Tensors expected = with_adapters(weights, source.parameters, 2);
  Tensors first;
  for (const test::Topology& topology : {test::Topology{1, 1, 1, 2, "GPipe"},
                                         {2, 1, 2, 4, "ZBVZeroBubble"},
                                         {2, 2, 1, 2, "1F1B", Sharding::Full},
                                         {2, 1, 1, 2, "1F1B", Sharding::None, 2},
                                         {1, 2, 1, 2, "1F1B", Sharding::Full, 2},
                                         {1, 2, 1, 2, "1F1B", Sharding::Optimizer}}) {
    SCOPED_TRACE(text_of(topology));
    RunOptions still = test::with(topology, still_options(layouts()[0], dir / "lora"));
    still.seed = 9;
    const RunResult plain = gpt_run(gpt, still, std::nullopt);
    expect_close(plain.parameters, expected);
    if (first.empty()) first = plain.parameters;
    expect_equal(plain.parameters, first);
    expect_equal(gpt_run(gpt, still, lora).parameters, first);
  }
}

// A run with LoRA whose base is another run with LoRA, and so on.
TEST(TrainLoraInit, BasesMayBeRunsWithLora) {
  at::set_num_threads(1);
  const test::TempDir dir;
  const RunResult first = train_archive({.archive = {.lora = kFirstLora}}, source_options(dir / "first"));
  RunOptions options = source_options(dir / "second");
  options.init = InitialWeights{.path = dir / "first"};
  const RunResult second = train_archive({.archive = {.lora = kSecondLora}}, options);
  const Tensors expected = with_adapters(with_adapters(archive_weights("language"), first.parameters, 1.5),
                                         second.parameters, 0.5);
  expect_close(train_archive({}, still_options(layouts()[4], dir / "second")).parameters, expected);

  // It resumes on the same base only.
  options.checkpoint.resume = true;
  options.steps = 6;
  const RunResult resumed = train_archive({.archive = {.lora = kSecondLora}}, options);
  RunOptions whole = options;
  whole.checkpoint = {};
  const RunResult unstopped = train_archive({.archive = {.lora = kSecondLora}}, whole);
  EXPECT_EQ(resumed.losses, std::vector<double>(unstopped.losses.begin() + 4, unstopped.losses.end()));
  RunOptions longer = source_options(dir / "first");
  longer.checkpoint.resume = true;
  longer.steps = 5;
  train_archive({.archive = {.lora = kFirstLora}}, longer);  // changes only the adapters of the base
  const ArchiveOptions archive{.file = recipe_file("language.pt2"), .lora = kSecondLora};
  options.steps = 8;
  EXPECT_ERROR(check_before_start(*archive_model(archive).model, options), UsageError,
               "trained on other base weights");
}

TEST(TrainLoraInit, RefusesMissingAndOtherBases) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions base = source_options(dir / "base");
  base.steps = 2;
  train_archive({}, base);
  RunOptions options = source_options(dir / "lora");
  options.init = InitialWeights{.path = dir / "base"};
  train_archive({.archive = {.lora = kFirstLora}}, options);
  const auto start = [&](const InitialWeights& init, const std::string& model) {
    RunOptions next = still_options(layouts()[0], init.path);
    next.init = init;
    check_before_start(*archive_model({.file = recipe_file(model + ".pt2")}).model, next);
  };
  const InitialWeights init{.path = dir / "lora"};
  start(init, "language");
  EXPECT_ERROR(start({.path = dir / "lora", .renames = {{"layers", "blocks"}}}, "language"), UsageError,
               "rename rules do not apply to the adapters");
  EXPECT_ERROR(start(init, "mlp"), UsageError, "no parameter or buffer");
  base.checkpoint.resume = true;
  base.steps = 3;
  train_archive({}, base);
  EXPECT_ERROR(start(init, "language"), UsageError, "trained on other base weights");
  std::filesystem::remove_all(dir / "base");
  EXPECT_ERROR(start(init, "language"), UsageError, "cannot be opened: there are no weights at");
  // Ranks find it, too.
  EXPECT_ERROR(train_archive({}, still_options(layouts()[0], dir / "lora")), UsageError,
               "cannot be opened: there are no weights at");
  std::filesystem::rename(dir / "lora", dir / "base");
  EXPECT_ERROR(start({.path = dir / "base"}, "language"), UsageError, "are their own base");
}

}  // namespace
}  // namespace penstock::train
