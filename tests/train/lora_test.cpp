// Low-rank adapters: runs over many topologies compared with the same adapters in Python (make_lora.py),
// checkpoints that contain only the adapters, bitwise resumes, and merged weights.
#include "graph/passes/passes.h"
#include "support/error_message.h"
#include "support/temp_dir.h"
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

using testing::HasSubstr;

LoraOptions python_lora() {
  return {.patterns = {"layers.*.up", "layers.1.down"}, .rank = 4, .alpha = 6, .seed = 7};
}

ArchiveRun adapted_run(const LoraOptions& lora = python_lora()) {
  return {.archive = {.lora = lora}};
}

bool is_adapter(const std::string& name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

TEST(TrainLora, LossesAndAdaptersMatchPythonInEveryTopology) {
  at::set_num_threads(1);
  const auto adapters = checkpoint::load_safetensors(recipe_file("lora.safetensors"));
  for (const auto& [name, losses] : python_losses("lora.txt")) {
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(name + ", " + text_of(layout));
      const RunResult result = train_archive(adapted_run(), options_for(name, layout));
      ASSERT_EQ(result.losses.size(), losses.size());
      for (std::size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(result.losses[i], losses[i], 2e-4 * losses[i]) << "step " << i + 1;
      std::size_t compared = 0;
      for (const auto& [parameter, value] : result.parameters) {
        if (!is_adapter(parameter)) continue;
        ++compared;
        const at::Tensor& python = adapters.at(name + "/" + parameter);
        EXPECT_TRUE(at::allclose(value, python, 1e-3, 1e-4))
            << parameter << " differs by " << (value - python).abs().max().item<float>();
      }
      EXPECT_EQ(compared, 10U);
    }
  }
}

TEST(TrainLora, CheckpointsContainOnlyAdapters) {
  at::set_num_threads(1);
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const test::TempDir dir;
    RunOptions options = options_for("adamw", layout);
    options.steps = 2;
    options.checkpoint.directory = dir / "c";
    const RunResult result = train_archive(adapted_run(), options);
    const graph::Pt2Archive archive(recipe_file("language.pt2"));
    for (const auto& [name, value] : result.parameters) {
      if (is_adapter(name)) continue;
      EXPECT_TRUE(at::equal(value, archive.load(name))) << name;
    }
    const checkpoint::Checkpoint saved(*result.checkpoint);
    std::size_t states = 0;
    for (const checkpoint::StoredTensor& tensor : saved.tensors()) {
      EXPECT_TRUE(is_adapter(tensor.name)) << tensor.name;
      states += tensor.kind == checkpoint::PieceKind::Optimizer ? 1 : 0;
      if (!tensor.state.empty()) continue;
      EXPECT_TRUE(at::equal(saved.read(tensor.name), result.parameters.at(tensor.name))) << tensor.name;
    }
    EXPECT_EQ(saved.tensors().size() - states, 10U);
    EXPECT_EQ(states, 30U);
    const AdapterNote note = adapter_note(saved).value();
    EXPECT_EQ(note.lora.options.rank, 4);
    EXPECT_EQ(note.lora.options.alpha, 6);
    EXPECT_EQ(note.lora.layers.size(), 5U);
    EXPECT_FALSE(note.init.has_value());
  }
}

TEST(TrainLora, ResumedRunsAreBitwiseEqual) {
  at::set_num_threads(1);
  LoraOptions lora = python_lora();
  lora.dropout = 0.2;
  for (const std::size_t index : {1U, 4U, 5U}) {
    const Layout& layout = layouts()[index];
    SCOPED_TRACE(text_of(layout));
    const test::TempDir dir;
    RunOptions options = options_for("adamw", layout);
    options.steps = 6;
    const RunResult whole = train_archive(adapted_run(lora), options);
    options.checkpoint.directory = dir / "c";
    options.steps = 3;
    train_archive(adapted_run(lora), options);
    options.checkpoint.resume = true;
    options.steps = 6;
    const RunResult resumed = train_archive(adapted_run(lora), options);
    ASSERT_EQ(resumed.first_step, 4);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(resumed.losses.at(i), whole.losses.at(i + 3));
    for (const auto& [parameter, value] : whole.parameters)
      EXPECT_TRUE(at::equal(resumed.parameters.at(parameter), value)) << parameter;
  }
}

TEST(TrainLora, ResumesInAnotherTopology) {
  at::set_num_threads(1);
  const RunResult whole = train_archive(adapted_run(), options_for("adamw", layouts()[0]));
  const test::TempDir dir;
  RunOptions options = options_for("adamw", layouts()[4]);
  options.checkpoint.directory = dir / "c";
  options.steps = 5;
  train_archive(adapted_run(), options);
  options.parallel = layouts()[0].parallel;
  options.checkpoint.resume = true;
  options.steps = kSteps;
  const RunResult resumed = train_archive(adapted_run(), options);
  for (std::size_t i = 0; i < resumed.losses.size(); ++i)
    EXPECT_NEAR(resumed.losses[i], whole.losses[i + 5], 2e-4 * whole.losses[i + 5]);
}

TEST(TrainLora, DropoutChangesOnlyTheAdapters) {
  at::set_num_threads(1);
  LoraOptions lora = python_lora();
  lora.dropout = 0.5;
  const auto plain = train_archive(adapted_run(), options_for("sgd", layouts()[0])).losses;
  const auto dropped = train_archive(adapted_run(lora), options_for("sgd", layouts()[0])).losses;
  EXPECT_EQ(dropped[0], plain[0]);  // B is 0
  EXPECT_NE(dropped[1], plain[1]);
}

TEST(TrainLora, StartsFromInitialWeightsAndVerifiesThemOnResume) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions options = options_for("sgd", layouts()[3]);
  options.steps = 3;
  options.checkpoint.directory = dir / "base";
  train_archive({}, options);
  options.init = InitialWeights{.path = dir / "base"};
  options.checkpoint.directory = dir / "adapters";
  const RunResult started = train_archive(adapted_run(), options);
  EXPECT_NE(started.losses[0], train_archive({},
                                             [&] {
                                               RunOptions fresh = options;
                                               fresh.init.reset();
                                               fresh.checkpoint = {};
                                               return fresh;
                                             }())
                                   .losses[0]);
  options.checkpoint.resume = true;
  options.steps = 4;
  EXPECT_EQ(train_archive(adapted_run(), options).first_step, 4);
  const auto resumes = [&](const RunOptions& other, const std::optional<LoraOptions>& lora) {
    ArchiveOptions archive{.file = recipe_file("language.pt2"), .lora = lora};
    RunOptions more = other;
    more.steps = 6;
    check_before_start(*archive_model(archive).model, more);
  };
  resumes(options, python_lora());
  RunOptions other = options;
  other.init.reset();
  EXPECT_ERROR(resumes(other, python_lora()), UsageError, "trained on other base weights");
  EXPECT_ERROR(resumes(other, std::nullopt), UsageError, "contains only the adapters");
  LoraOptions changed = python_lora();
  changed.alpha = 8;
  EXPECT_ERROR(resumes(options, changed), UsageError, "alpha 6; this run has");
  changed = python_lora();
  changed.patterns = {"layers.*.up"};
  EXPECT_ERROR(resumes(options, changed), UsageError, "another kind: LoRA of rank 4 for 5 layers");
  options.checkpoint.directory = dir / "base";
  EXPECT_ERROR(resumes(options, python_lora()), UsageError, "without LoRA");
}

TEST(TrainLora, MergedWeightsAddTheProductOfTheAdapters) {
  at::set_num_threads(1);
  const test::TempDir dir;
  RunOptions options = options_for("sgd", layouts()[1]);
  options.checkpoint.directory = dir / "c";
  const RunResult result = train_archive(adapted_run(), options);
  const graph::Pt2Archive archive(recipe_file("language.pt2"));
  std::vector<checkpoint::Piece> state = state_of(archive_weights("language"));
  const auto saved = std::make_shared<const checkpoint::Checkpoint>(*result.checkpoint);
  const auto own = [&](const std::string& name, std::optional<std::uint64_t>) { return archive.load(name); };
  const MergedWeights merged(saved, state, own);
  for (const checkpoint::Piece& piece : state) {
    at::Tensor expected = piece.local.detach();
    const std::string module = piece.name.substr(0, piece.name.rfind('.'));
    const auto a = result.parameters.find(module + ".lora_A.weight");
    const bool adapted = a != result.parameters.end() && piece.name.ends_with(".weight");
    if (adapted)
      expected = expected + 1.5 * result.parameters.at(module + ".lora_B.weight").matmul(a->second);
    EXPECT_TRUE(at::allclose(merged.read(piece.name), expected, 1e-5, 1e-6)) << piece.name;
    EXPECT_EQ(merged.read_changed(piece.name).defined(), adapted) << piece.name;
  }
  const auto other = [&](const std::string& name, std::optional<std::uint64_t>) {
    return archive.load(name) + 1;
  };
  EXPECT_ERROR(MergedWeights(saved, state, other), UsageError, "other base weights");
  std::erase_if(state, [](const checkpoint::Piece& piece) { return piece.name == "layers.1.down.weight"; });
  EXPECT_ERROR(MergedWeights(saved, state, own), UsageError,
               "has no parameter or buffer 'layers.1.down.weight'");
}

// Each form in which exports contain a linear layer.
TEST(TrainLora, AdaptsEveryFormOfALinearLayer) {
  at::manual_seed(3);
  const graph::ModelTensors tensors{{{"first.weight", at::randn({5, 4})},
                                     {"first.bias", at::randn({5})},
                                     {"second.weight", at::randn({5, 6})},
                                     {"second.bias", at::randn({6})},
                                     {"third.weight", at::randn({6, 6})},
                                     {"fourth.weight", at::randn({3, 6})}},
                                    {}};
  for (const value::NamedTensor& item : tensors.parameters) at::Tensor(item.tensor).set_requires_grad(true);
  const auto forward = [&](const value::Args& args, const value::Kwargs&) {
    const auto p = [&](std::size_t i) { return tensors.parameters[i].tensor; };
    at::Tensor x = at::linear(args[0].toTensor(), p(0), p(1)).tanh();
    x = at::addmm(p(3), x, p(2)).tanh();                                // inputs x outputs, as in GPT-2
    x = at::matmul(x.unsqueeze(0), p(4).t()).squeeze(0);                // a separate transposition
    return c10::IValue(at::mm(x, p(5).t()) + at::mm(x * 2, p(5).t()));  // used twice
  };
  const at::Tensor input = at::randn({2, 4});
  const graph::Captured captured = graph::capture(forward, tensors, {input});
  const LoraOptions options{.patterns = {"first", "second", "third", "fourth"}, .rank = 2, .alpha = 3};
  const AdaptedGraph adapted = add_adapters(captured.graph, options);
  ASSERT_EQ(adapted.lora.layers.size(), 4U);
  EXPECT_TRUE(adapted.lora.layers[1].transposed);
  std::vector<at::Tensor> merged = captured.tensors, separate = captured.tensors;
  for (const AdaptedLayer& layer : adapted.lora.layers) {
    const at::Tensor a = adapted.initial_value(layer.a()).detach();
    const double bound = 1 / std::sqrt(static_cast<double>(a.size(1)));
    EXPECT_LE(a.abs().max().item<double>(), bound);
    EXPECT_GT(a.abs().max().item<double>(), bound / 2);
    const at::Tensor b = at::randn_like(adapted.initial_value(layer.b()).detach());
    EXPECT_TRUE(at::equal(adapted.initial_value(layer.b()), at::zeros_like(b)));
    separate.insert(separate.end(), {a, b});
    for (std::size_t i = 0; i < captured.graph.slots.size(); ++i) {
      if (captured.graph.slots[i].names[0] != layer.weight) continue;
      const at::Tensor change = 1.5 * b.matmul(a);
      merged[i] = merged[i].detach() + (layer.transposed ? change.t() : change);
    }
  }
  graph::GraphModule with(adapted.graph, separate), without(captured.graph, merged);
  const at::Tensor got = with.forward({input}).toTensor(), expected = without.forward({input}).toTensor();
  EXPECT_TRUE(at::allclose(got, expected, 1e-4, 1e-5)) << got << expected;
}

TEST(TrainLora, RefusesScaledProducts) {
  const graph::ModelTensors tensors{{{"layer.weight", at::randn({4, 5})}, {"layer.bias", at::randn({5})}},
                                    {}};
  const auto forward = [&](const value::Args& args, const value::Kwargs&) {
    return c10::IValue(
        at::addmm(tensors.parameters[1].tensor, args[0].toTensor(), tensors.parameters[0].tensor, 1, 0.5));
  };
  const graph::Captured captured = graph::capture(forward, tensors, {at::randn({2, 4})});
  EXPECT_ERROR(add_adapters(captured.graph, {.patterns = {"layer"}}), UsageError, "its product is scaled");
}

TEST(TrainLora, RefusesWhatCannotBeAdapted) {
  const auto refused = [](const LoraOptions& lora, const std::string& text) {
    EXPECT_ERROR(archive_model({.file = recipe_file("language.pt2"), .lora = lora}), UsageError, text);
    EXPECT_ERROR(gpt_model({.vocabulary = 5, .context = 4, .layers = 1, .heads = 1, .width = 4}, 1, lora),
                 UsageError, text);
  };
  refused({.patterns = {"layers.*.upp"}}, "no linear layer or embedding of the model matches 'layers.*.upp'");
  refused({}, "needs patterns");
  refused({.patterns = {"*"}, .rank = 0}, "rank of LoRA must be between 1 and 65535");
  refused({.patterns = {"*"}, .alpha = 0}, "alpha of LoRA must be greater than 0");
  refused({.patterns = {"*"}, .dropout = 1}, "dropout of LoRA");
  const auto archive_refused = [](const std::string& pattern, const std::string& text) {
    const LoraOptions lora{.patterns = {pattern}};
    EXPECT_ERROR(archive_model({.file = recipe_file("language.pt2"), .lora = lora}), UsageError, text);
  };
  archive_refused("head", "the table of an embedding");
  archive_refused("layers.0.norm", "no linear layer or embedding");
}

test::Topology topology(int pp, int dp, Sharding sharding = Sharding::None, int tp = 1) {
  return {.pp = pp,
          .dp = dp,
          .stages_per_rank = 1,
          .microbatches = 2,
          .schedule = "1F1B",
          .sharding = sharding,
          .tp = tp};
}

RunResult small_gpt_run(const test::Topology& topology, const RunOptions& more, const LoraOptions& lora) {
  return gpt_run(test::small_gpt(Vocabulary(test::small_text())), test::with(topology, more), lora);
}

TEST(TrainLora, GptIsTheSameInEveryTopology) {
  at::set_num_threads(1);
  const LoraOptions lora{.patterns = {"blocks.*.attention", "blocks.1.mlp", "blocks.3.mlp.down"}, .rank = 3};
  const RunResult alone = small_gpt_run(topology(1, 1), test::small_options(), lora);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  for (const test::Topology& one :
       {topology(2, 1), topology(2, 2), topology(2, 2, Sharding::Full), topology(1, 1, Sharding::None, 2),
        topology(2, 1, Sharding::None, 2), topology(1, 2, Sharding::Full, 2)}) {
    SCOPED_TRACE(text_of(one));
    expect_same_training(small_gpt_run(one, test::small_options(), lora), alone);
  }
}

TEST(TrainLora, GptResumesBitwise) {
  at::set_num_threads(1);
  const LoraOptions lora{.patterns = {"blocks.*.attention.*"}, .dropout = 0.1};
  for (const test::Topology& one : {topology(2, 2), topology(2, 1, Sharding::None, 2)}) {
    const test::TempDir dir;
    RunOptions options = test::small_options();
    options.steps = 6;
    const RunResult whole = small_gpt_run(one, options, lora);
    options.checkpoint.directory = dir / "c";
    options.steps = 3;
    small_gpt_run(one, options, lora);
    options.checkpoint.resume = true;
    options.steps = 6;
    const RunResult resumed = small_gpt_run(one, options, lora);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(resumed.losses.at(i), whole.losses.at(i + 3));
    for (const auto& [name, value] : whole.parameters)
      EXPECT_TRUE(at::equal(resumed.parameters.at(name), value)) << name;
  }
}

}  // namespace
}  // namespace penstock::train
