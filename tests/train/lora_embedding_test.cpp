// Low-rank adapters of embeddings: compared with Python (make_lora.py) in every topology, with merged tables,
// and with one rank for the GPT.
#include "graph/passes/passes.h"
#include "support/error_message.h"
#include "support/temp_dir.h"
#include "train/lora/gpt_adapters.h"
#include "train/lora/graph_adapters.h"
#include "train/lora_run.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/checkpoint.h>
#include <penstock/graph/capture.h>
#include <penstock/graph/graph_module.h>
#include <penstock/train/adapters.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::train {
namespace {

const LoraOptions kEmbeddingLora{
    .patterns = {"token", "position", "layers.1.up"}, .rank = 4, .alpha = 6, .seed = 7};

ArchiveRun embedding_run(const parallel::ParallelPlan& plan = {}) {
  return {
      .model = "embeddings", .archive = {.tensor_plan = plan, .lora = kEmbeddingLora}, .data = "language"};
}

void expect_python(const RunResult& result, const std::string& recipe) {
  const std::vector<double> losses = python_losses("lora_embeddings.txt").at(recipe);
  ASSERT_EQ(result.losses.size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(result.losses[i], losses[i], 2e-4 * losses[i]) << "step " << i + 1;
  std::size_t compared = 0;
  for (const auto& [name, expected] :
       checkpoint::load_safetensors(recipe_file("lora_embeddings.safetensors"))) {
    if (!name.starts_with(recipe + "/")) continue;
    ++compared;
    const at::Tensor value = result.parameters.at(name.substr(recipe.size() + 1));
    EXPECT_TRUE(at::allclose(value, expected, 1e-3, 1e-4))
        << name << " differs by " << (value - expected).abs().max().item<float>();
  }
  EXPECT_EQ(compared, 6U);
}

TEST(TrainLoraEmbedding, LossesAndAdaptersMatchPythonInEveryTopology) {
  at::set_num_threads(1);
  for (const std::string recipe : {"sgd", "adamw"}) {
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(recipe + ", " + text_of(layout));
      expect_python(train_archive(embedding_run(), options_for(recipe, layout)), recipe);
    }
  }
}

// A by rows of the table, B by its features.
TEST(TrainLoraEmbedding, AreShardedLikeTheirTables) {
  at::set_num_threads(1);
  const parallel::ParallelPlan plan{{"token", parallel::RowwiseParallel()},
                                    {"position", parallel::ColwiseParallel()},
                                    {"layers.*.up", parallel::ColwiseParallel()},
                                    {"layers.*.down", parallel::RowwiseParallel()}};
  for (const Layout& layout : layouts()) {
    if (layout.parallel.tp == 1) continue;
    SCOPED_TRACE(text_of(layout));
    const test::TempDir dir;
    RunOptions options = options_for("adamw", layout);
    options.checkpoint.directory = dir / "c";
    const RunResult result = train_archive(embedding_run(plan), options);
    expect_python(result, "adamw");
    if (layout.parallel.dp > 1) continue;  // replicas store parts of the shards
    const checkpoint::Checkpoint saved(*result.checkpoint);
    const auto pieces = [&](const std::string& name) { return saved.find(name)->pieces.size(); };
    EXPECT_EQ(pieces("token.lora_embedding_A.weight"), 2U);
    EXPECT_EQ(pieces("token.lora_embedding_B.weight"), 1U);
    EXPECT_EQ(pieces("position.lora_embedding_A.weight"), 1U);
    EXPECT_EQ(pieces("position.lora_embedding_B.weight"), 2U);
    EXPECT_TRUE(at::equal(saved.read("token.lora_embedding_A.weight"),
                          result.parameters.at("token.lora_embedding_A.weight")));
  }
}

TEST(TrainLoraEmbedding, ResumesAndMergesCheckpoints) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions options = options_for("adamw", layouts()[4]);
  const RunResult whole = train_archive(embedding_run(), options);
  options.checkpoint.directory = dir / "c";
  options.steps = 5;
  train_archive(embedding_run(), options);
  options.checkpoint.resume = true;
  options.steps = kSteps;
  const RunResult resumed = train_archive(embedding_run(), options);
  EXPECT_EQ(resumed.losses, std::vector<double>(whole.losses.begin() + 5, whole.losses.end()));

  const Tensors weights = archive_weights("embeddings");
  const std::vector<checkpoint::Piece> state = state_of(weights);
  const auto saved = std::make_shared<const checkpoint::Checkpoint>(*resumed.checkpoint);
  const AdapterNote note = adapter_note(*saved).value();
  ASSERT_EQ(note.lora.layers.size(), 3U);
  const MergedWeights merged(
      saved, state, [&](const std::string& name, std::optional<std::uint64_t>) { return weights.at(name); });
  for (const std::string module : {"token", "position"}) {
    const at::Tensor a = whole.parameters.at(module + ".lora_embedding_A.weight"),
                     b = whole.parameters.at(module + ".lora_embedding_B.weight");
    const at::Tensor expected = weights.at(module + ".weight") + 1.5 * b.matmul(a).t();
    EXPECT_TRUE(at::allclose(merged.read(module + ".weight"), expected, 1e-5, 1e-6)) << module;
  }
  // The row of the padding index has no gradient.
  EXPECT_EQ(whole.parameters.at("token.lora_embedding_A.weight").select(1, 3).abs().max().item<float>(), 0);

  export_adapter_directory(*saved, dir / "peft");
  const auto exported = checkpoint::load_safetensors(dir / "peft/adapter_model.safetensors");
  EXPECT_EQ(exported.size(), 6U);
  EXPECT_TRUE(at::equal(exported.at("base_model.model.token.lora_embedding_A"),
                        whole.parameters.at("token.lora_embedding_A.weight")));
  EXPECT_TRUE(at::equal(exported.at("base_model.model.layers.1.up.lora_A.weight"),
                        whole.parameters.at("layers.1.up.lora_A.weight")));

  // A new run starts from the merged tables.
  RunOptions next = options_for("sgd", layouts()[3]);
  next.steps = 1;
  next.learning_rate.peak = 0;
  next.init = InitialWeights{.path = dir / "c"};
  ArchiveRun plain = embedding_run();
  plain.archive.lora.reset();
  const RunResult started = train_archive(plain, next);
  for (const checkpoint::Piece& piece : state)
    EXPECT_TRUE(at::equal(started.parameters.at(piece.name), merged.read(piece.name))) << piece.name;
}

// The tables as operators read them: plain, transposed before, and converted before.
TEST(TrainLoraEmbedding, AdaptsEveryFormOfATable) {
  at::manual_seed(3);
  const graph::ModelTensors tensors{{{"first.weight", at::randn({7, 4})},
                                     {"second.weight", at::randn({4, 5})},
                                     {"third.weight", at::randn({6, 4})}},
                                    {}};
  for (const value::NamedTensor& item : tensors.parameters) at::Tensor(item.tensor).set_requires_grad(true);
  const auto forward = [&](const value::Args& args, const value::Kwargs&) {
    const auto p = [&](std::size_t i) { return tensors.parameters[i].tensor; };
    const at::Tensor x = args[0].toTensor();
    return c10::IValue(at::embedding(p(0), x, 2) + at::embedding(p(1).t(), x) +
                       at::embedding(p(2).to(at::kDouble), x) + at::embedding(p(0), x + 1, 2));
  };
  const at::Tensor input = at::arange(10, at::kLong).reshape({2, 5}) % 5;
  const graph::Captured captured = graph::capture(forward, tensors, {input});
  const LoraOptions options{.patterns = {"first", "second", "third"}, .rank = 2, .alpha = 3, .dropout = 0.5};
  const AdaptedGraph adapted = add_adapters(captured.graph, options);
  ASSERT_EQ(adapted.lora.layers.size(), 3U);
  std::vector<at::Tensor> merged = captured.tensors, separate = captured.tensors;
  for (const AdaptedLayer& layer : adapted.lora.layers) {
    EXPECT_TRUE(layer.embedding);
    const at::Tensor b = adapted.initial_value(layer.b()).detach();
    EXPECT_GT(b.abs().max().item<double>(), 0.3);
    const at::Tensor a = at::randn_like(adapted.initial_value(layer.a()).detach());
    EXPECT_TRUE(at::equal(adapted.initial_value(layer.a()), at::zeros_like(a)));
    separate.insert(separate.end(), {a, b});
    for (std::size_t i = 0; i < captured.graph.slots.size(); ++i) {
      if (captured.graph.slots[i].names[0] != layer.weight) continue;
      const at::Tensor change = 1.5 * b.matmul(a);
      merged[i] = merged[i].detach() + (layer.transposed ? change.t() : change);
    }
  }
  graph::GraphModule with(adapted.graph, separate), without(captured.graph, merged);
  const at::Tensor got = with.forward({input}).toTensor(), expected = without.forward({input}).toTensor();
  EXPECT_EQ(got.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::allclose(got, expected, 1e-4, 1e-5)) << got << expected;
}

TEST(TrainLoraEmbedding, OnlyTheirOwnPathSelectsThem) {
  const auto layers = [](const std::vector<std::string>& patterns) {
    const ArchiveOptions options{.file = recipe_file("embeddings.pt2"),
                                 .lora = LoraOptions{.patterns = patterns}};
    const ArchiveModel archive = archive_model(options);
    std::vector<std::string> modules;
    for (const AdaptedLayer& layer : archive.model->lora()->layers) modules.push_back(layer.module);
    return modules;
  };
  using testing::UnorderedElementsAre;
  EXPECT_THAT(layers({"tok*"}), UnorderedElementsAre("token"));
  EXPECT_THAT(layers({"*ead", "position"}), UnorderedElementsAre("head", "position"));
  EXPECT_EQ(layers({"*"}).size(), 11U);
  EXPECT_EQ(layers({"layers"}).size(), 8U);
  EXPECT_ERROR(layers({"tokens"}), UsageError, "no linear layer or embedding of the model matches 'tokens'");
}

models::GptOptions untied_gpt() {
  models::GptOptions options = test::small_gpt(Vocabulary(test::small_text()));
  options.tied = false;
  options.positions = models::PositionKind::Learned;
  return options;
}

// Sharded by vocabulary with tensor parallelism.
TEST(TrainLoraEmbedding, GptIsTheSameInEveryTopology) {
  at::set_num_threads(1);
  const LoraOptions lora{.patterns = {"token", "position", "blocks.1", "head"}, .rank = 3};
  const auto run_in = [&](const test::Topology& topology) {
    return gpt_run(untied_gpt(), test::with(topology), lora);
  };
  const RunResult alone = run_in({1, 1, 1, 2, "1F1B"});
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  EXPECT_GT(alone.parameters.at("token.lora_embedding_A.weight").abs().max().item<float>(), 0);
  for (const test::Topology& topology : {test::Topology{2, 1, 1, 2, "1F1B"},
                                         {2, 2, 1, 2, "1F1B", Sharding::Full},
                                         {1, 1, 1, 2, "1F1B", Sharding::None, 2},
                                         {1, 2, 1, 2, "1F1B", Sharding::Full, 2}}) {
    SCOPED_TRACE(text_of(topology));
    expect_same_training(run_in(topology), alone);
  }
}

TEST(TrainLoraEmbedding, GptComputesLikeMergedTables) {
  const LoraOptions lora{.patterns = {"token", "position"}, .rank = 3, .alpha = 6};
  models::Gpt adapted(untied_gpt()), merged(untied_gpt());
  for (models::Gpt model : {adapted, merged}) models::initialize(*model, model->options(), 3);
  add_adapters(*adapted, lora);
  const at::NoGradGuard no_grad;
  for (const auto member : {&models::GptImpl::token, &models::GptImpl::position}) {
    const models::AdaptableEmbedding& embedding = (*adapted).*member;
    const at::Tensor a = embedding->lora_embedding_A->weight, b = embedding->lora_embedding_B->weight;
    EXPECT_EQ(a.abs().max().item<float>(), 0);
    EXPECT_NEAR(b.std().item<float>(), 1, 0.5);
    a.copy_(at::randn(a.sizes()));
    ((*merged).*member)->weight.add_(b.matmul(a).t(), 2);
  }
  const at::Tensor tokens = at::arange(12, at::kLong).reshape({2, 6});
  EXPECT_TRUE(at::allclose(adapted->forward(tokens), merged->forward(tokens), 1e-4, 1e-5));
}

TEST(TrainLoraEmbedding, RefusesTiedTables) {
  const auto gpt = [](bool tied, const std::vector<std::string>& patterns) {
    const models::GptOptions options{
        .vocabulary = 5, .context = 4, .layers = 1, .heads = 1, .width = 4, .tied = tied};
    return gpt_model(options, 1, LoraOptions{.patterns = patterns})->lora()->layers.size();
  };
  EXPECT_EQ(gpt(false, {"token"}), 1U);
  EXPECT_ERROR(gpt(true, {"token"}), UsageError, "also the head of the GPT");
  EXPECT_EQ(gpt(false, {"*"}), gpt(true, {"*"}) + 2);
  EXPECT_ERROR(gpt(false, {"position"}), UsageError, "no linear layer or embedding of the model matches");
  EXPECT_ERROR(
      archive_model({.file = recipe_file("language.pt2"), .lora = LoraOptions{.patterns = {"token"}}}),
      UsageError, "the table of an embedding");
}

}  // namespace
}  // namespace penstock::train
