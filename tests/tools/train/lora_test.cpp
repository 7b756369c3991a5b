// `penstock train --lora` through the real binaries: what dry runs and configurations show, checkpoints of
// adapters in every command that reads weights, and bad input.
#include "support/lines.h"
#include "support/program.h"
#include "tools/train/small_gpt.h"

#include <penstock/checkpoint/safetensors.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <filesystem>

namespace penstock::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

const std::string kArchives = PENSTOCK_SOURCE_DIR "/tests/train/archives/";

Words language(const Words& more) {
  Words words{"train", kArchives + "language.pt2", "--data=" + kArchives + "language.safetensors",
              "--batch=8", "--steps=4"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Outcome expect_done(const Words& words) {
  Outcome done = penstock(words);
  EXPECT_EQ(done.code, 0) << done.err;
  return done;
}

void expect_refused(const Words& words, const std::string& text) {
  const Outcome refused = penstock(words);
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr(text), HasSubstr("hint: ")));
}

TEST(ToolTrainLora, DryRunCountsTrainedParameters) {
  const Words words = language({"--lora=layers.*.up,layers.1.down", "--lora-rank=4", "--pp=2", "--dry-run"});
  // Four layers of 16 x 32 and one of 32 x 16, each with 4 x (16 + 32) elements.
  EXPECT_THAT(expect_done(words).out,
              AllOf(HasSubstr("\ntrained     960 of "), HasSubstr("LoRA of rank 4 for 5 layers")));
  Words as_json = words;
  as_json.emplace_back("--json");
  const json dry = json::parse(expect_done(as_json).out);
  EXPECT_EQ(dry.at("model").at("trained_parameters"), 960);
  std::uint64_t gradients = 0, states = 0;
  for (const json& rank : dry.at("ranks")) {
    gradients += rank.at("gradient_bytes").get<std::uint64_t>();
    states += rank.at("optimizer_bytes").get<std::uint64_t>();
  }
  EXPECT_EQ(gradients, 960U * 4);
  EXPECT_GE(states, 960U * 8);
  EXPECT_LT(states, 960U * 9);
  EXPECT_THAT(dry.at("config").get<std::string>(),
              AllOf(HasSubstr("lora = [\"layers.*.up\", \"layers.1.down\"]\n"), HasSubstr("lora-rank = 4\n"),
                    HasSubstr("lora-alpha = 8"), HasSubstr("lora-dropout = 0")));
  Words plain = language({"--dry-run"});
  EXPECT_THAT(expect_done(plain).out, Not(HasSubstr("trained")));
  const std::vector<std::string> gpt = small_gpt({"--lora=blocks.*.attention.query", "--dry-run", "--tp=2"});
  const Outcome outcome = run_program(gpt);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\ntrained     512 of "));  // 2 layers, 8 x (16 + 16)
}

// Each rank of several has fewer threads, for which kernels may add in another order: 4 layers that add up to
// 32 products in float32 differ by less than 4 * 32 * 6e-8, relative to the largest value.
void expect_same_outputs(const std::string& file, const std::string& expected) {
  const auto got = checkpoint::load_safetensors(file), wanted = checkpoint::load_safetensors(expected);
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, value] : wanted) {
    const double largest = value.abs().max().item<double>();
    EXPECT_LT((got.at(name) - value).abs().max().item<double>(), 1e-5 * largest) << name;
  }
}

TEST(ToolTrainLora, EveryCommandAddsAdaptersToTheirBase) {
  const TempDir dir;
  const std::string model = kArchives + "language.pt2", run = dir / "run";
  expect_done(language({"--lora=layers", "--lora-alpha=16", "--lr=0.05", "--pp=2", "--checkpoint", run}));
  EXPECT_THAT(expect_done({"checkpoint", "inspect", run}).out,
              AllOf(HasSubstr("parameter: 16 tensors"), HasSubstr("layers.0.up.lora_A.weight"),
                    Not(HasSubstr("token.weight"))));
  expect_done({"checkpoint", "convert", run, dir / "merged.pt2", "--model", model});
  const auto eval = [&](const std::string& archive, const std::string& output, const Words& more) {
    Words words{"eval",     archive,      "--input=" + kArchives + "language.safetensors",
                "--output", dir / output, "--microbatches=2"};
    words.insert(words.end(), more.begin(), more.end());
    expect_done(words);
    return slurp(dir / output);
  };
  const std::string merged = eval(dir / "merged.pt2", "merged.safetensors", {});
  EXPECT_EQ(eval(model, "adapted.safetensors", {"--checkpoint", run}), merged);
  eval(model, "stages.safetensors", {"--checkpoint", run, "--pp=2"});
  expect_same_outputs(dir / "stages.safetensors", dir / "merged.safetensors");
  EXPECT_NE(eval(model, "base.safetensors", {}), merged);
  EXPECT_EQ(expect_done({"inspect", model, "--checkpoint", run}).out, expect_done({"inspect", model}).out);

  expect_done({"checkpoint", "convert", run, dir / "adapters"});
  const json config = json::parse(slurp(dir / "adapters/adapter_config.json"));
  EXPECT_EQ(config.at("r"), 8);
  EXPECT_EQ(config.at("lora_alpha"), 16);
  EXPECT_EQ(config.at("peft_type"), "LORA");
  EXPECT_EQ(config.at("target_modules").size(), 8U);
  EXPECT_FALSE(config.at("fan_in_fan_out").get<bool>());
  expect_done({"checkpoint", "convert", run, dir / "adapters.safetensors"});
  EXPECT_EQ(slurp(dir / "adapters.safetensors"), slurp(dir / "adapters/adapter_model.safetensors"));
  EXPECT_THAT(slurp(dir / "adapters.safetensors"), HasSubstr("base_model.model.layers.0.up.lora_A.weight"));

  expect_refused({"checkpoint", "convert", run, dir / "adapters"}, "already exists");
  expect_refused({"checkpoint", "convert", run, dir / "other", "--max-shard-size=1MB"}, "contains adapters");
  expect_refused({"checkpoint", "convert", run, run}, "is a checkpoint");
  expect_refused({"inspect", kArchives + "mlp.pt2", "--checkpoint", run}, "no parameter or buffer");
  // Another base with the same shapes.
  const std::string full = dir / "full";
  expect_done(language({"--checkpoint", full}));
  expect_done({"checkpoint", "convert", full, dir / "tuned.pt2", "--model", model});
  expect_refused({"eval", dir / "tuned.pt2", "--input=" + kArchives + "language.safetensors", "--output",
                  dir / "x.safetensors", "--microbatches=2", "--checkpoint", run},
                 "trained on other base weights");
  // Adapters of a base that is not in the archive.
  const std::string second = dir / "second";
  expect_done(language({"--lora=layers", "--init", full, "--checkpoint", second}));
  expect_done({"checkpoint", "convert", second, dir / "second.pt2", "--model", model});
  EXPECT_EQ(eval(dir / "second.pt2", "second.safetensors", {}),
            eval(model, "init.safetensors", {"--checkpoint", second}));
  std::filesystem::remove_all(full);
  expect_refused({"inspect", model, "--checkpoint", second}, "cannot be opened: there are no weights at");
}

// Compares merged weights, as one file and as shards, with base + scale * B A in Python.
void expect_merged(const std::string& base, const TempDir& dir, const char* scale, const Words& merge) {
  const char* given = std::getenv("PENSTOCK_PYTHON");
  const std::string interpreter = given != nullptr && *given != '\0' ? given : "python3";
  const std::string run = dir / "run";
  const auto convert = [&](const std::string& target, const Words& more) {
    Words words{"checkpoint", "convert", run, target};
    words.insert(words.end(), more.begin(), more.end());
    expect_done(words);
  };
  Words sharded = merge;
  sharded.emplace_back("--max-shard-size=3000");
  convert(dir / "merged.safetensors", merge);
  convert(dir / "shards", sharded);
  convert(dir / "adapters.safetensors", {});
  const Outcome checked =
      run_program({interpreter, PENSTOCK_SOURCE_DIR "/tests/tools/train/merged_weights.py", base,
                   dir / "adapters.safetensors", scale, dir / "merged.safetensors", dir / "shards"});
  if (checked.code == 77) GTEST_SKIP() << "this Python lacks torch, numpy or safetensors";
  EXPECT_EQ(checked.out, "agrees\n") << checked.err;
}

TEST(ToolTrainLora, MergedWeightsOfExportedModelsAreFiles) {
  const TempDir dir;
  const std::string model = kArchives + "language.pt2", run = dir / "run";
  expect_done(language({"--lora=layers", "--lora-alpha=16", "--lr=0.05", "--ranks=1", "--checkpoint", run}));
  expect_merged(model, dir, "2", {"--merged", "--model", model});
  const std::string merged = dir / "merged.safetensors";
  // A run that changes nothing shows from which weights it starts. Merging by hand and by --init are the
  // same.
  for (const std::string& start : {merged, dir / "shards", run}) {
    expect_done(
        language({"--init", start, "--optimizer=sgd", "--lr=0", "--ranks=1", "--checkpoint", dir / "next"}));
    expect_done({"checkpoint", "convert", dir / "next", dir / "next.safetensors", "--force"});
    EXPECT_EQ(slurp(dir / "next.safetensors"), slurp(merged));  // of the same step
    std::filesystem::remove_all(dir / "next");
  }

  const auto refused = [&](const Words& more, const std::string& text) {
    Words words{"checkpoint", "convert"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(words, text);
  };
  refused({run, dir / "x.safetensors", "--merged"}, "it was written for");
  refused({run, merged, "--merged", "--model", model}, "already exists");
  refused({run, dir / "x.safetensors", "--merged", "--everything", "--model", model},
          "without optimizer states");
  refused({merged, dir / "x", "--merged", "--model", model}, "--merged merges the adapters of a checkpoint");
  expect_done(language({"--ranks=1", "--checkpoint", dir / "full"}));
  refused({dir / "full", dir / "x.safetensors", "--merged", "--model", model},
          "contains no adapters to merge");
}

TEST(ToolTrainLora, MergedTablesOfExportedModelsAreFiles) {
  const TempDir dir;
  const std::string model = kArchives + "embeddings.pt2", run = dir / "run";
  const std::string data = kArchives + "language.safetensors";
  expect_done({"train", model, "--data", data, "--batch=8", "--steps=4", "--lora=token,position,layers.1",
               "--lora-alpha=16", "--lr=0.05", "--pp=2", "--checkpoint", run});
  EXPECT_THAT(expect_done({"checkpoint", "inspect", run}).out,
              AllOf(HasSubstr("parameter: 8 tensors"), HasSubstr("token.lora_embedding_A.weight")));
  expect_merged(model, dir, "2", {"--merged", "--model", model});
  expect_done({"checkpoint", "convert", run, dir / "merged.pt2", "--model", model});
  const auto eval = [&](const std::string& archive, const std::string& output, const Words& more) {
    Words all{"eval", archive, "--input", data, "--output", dir / output, "--microbatches=1"};
    all.insert(all.end(), more.begin(), more.end());
    expect_done(all);
    return slurp(dir / output);
  };
  EXPECT_EQ(eval(dir / "merged.pt2", "of_merged.safetensors", {}),
            eval(model, "adapted.safetensors", {"--checkpoint", run}));
}

TEST(ToolTrainLora, MergedWeightsOfTheGptAreFiles) {
  const TempDir dir;
  const auto gpt = [&](Words more) {
    more.insert(more.end(), {"--untied", "--positions=learned"});
    const Outcome done = run_program(small_gpt(more));
    EXPECT_EQ(done.code, 0) << done.err;
  };
  gpt({"--steps=2", "--ranks=1", "--checkpoint", dir / "base"});
  expect_done({"checkpoint", "convert", dir / "base", dir / "base.safetensors"});
  gpt({"--steps=3", "--ranks=1", "--lora=blocks,token,position", "--lora-rank=2", "--lora-alpha=1",
       "--lr=0.05", "--init", dir / "base", "--checkpoint", dir / "run"});
  expect_merged(dir / "base.safetensors", dir, "0.5", {"--merged"});
  for (const std::string& start : {dir / "merged.safetensors", dir / "run"}) {
    gpt({"--steps=3", "--ranks=1", "--init", start, "--optimizer=sgd", "--lr=0", "--seed=4", "--checkpoint",
         dir / "next"});
    expect_done({"checkpoint", "convert", dir / "next", dir / "next.safetensors", "--force"});
    EXPECT_EQ(slurp(dir / "next.safetensors"), slurp(dir / "merged.safetensors"));
    std::filesystem::remove_all(dir / "next");
  }
  // Adapters whose base is a run with adapters whose base is drawn from another seed.
  const Words first{"--lora=blocks", "--lr=0.05", "--ranks=1", "--steps=3"};
  const auto with = [&](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  gpt(with(first, {"--seed=5", "--checkpoint", dir / "first"}));
  gpt(with(first, {"--seed=6", "--init", dir / "first", "--checkpoint", dir / "second"}));
  gpt({"--steps=3", "--pp=2", "--init", dir / "second", "--optimizer=sgd", "--lr=0", "--checkpoint",
       dir / "next"});
  expect_done({"checkpoint", "convert", dir / "next", dir / "next.safetensors", "--force"});
  expect_done({"checkpoint", "convert", dir / "second", dir / "second.safetensors", "--merged"});
  EXPECT_EQ(slurp(dir / "next.safetensors"), slurp(dir / "second.safetensors"));
}

TEST(ToolTrainLora, CheckpointsContainStatisticsThatTheRunChanges) {
  const TempDir dir;
  const std::string model = kArchives + "norm.pt2", data = kArchives + "mlp.safetensors", run = dir / "run";
  const Words words{"train",     model,       "--data",   data,           "--loss=mse", "--batch=8",
                    "--ranks=1", "--steps=3", "--lora=0", "--checkpoint", run};
  expect_done(words);
  EXPECT_THAT(expect_done({"checkpoint", "inspect", run}).out,
              AllOf(HasSubstr("parameter: 2 tensors"), HasSubstr("buffer: 3 tensors")));
  expect_done({"checkpoint", "convert", run, dir / "merged.pt2", "--model", model});
  const auto eval = [&](const std::string& archive, const std::string& output, const Words& more) {
    Words all{"eval", archive, "--input", data, "--output", dir / output, "--microbatches=1"};
    all.insert(all.end(), more.begin(), more.end());
    expect_done(all);
    return slurp(dir / output);
  };
  EXPECT_EQ(eval(dir / "merged.pt2", "merged.safetensors", {}),
            eval(model, "adapted.safetensors", {"--checkpoint", run}));
}

TEST(ToolTrainLora, GptWithAdaptersGenerates) {
  const TempDir dir;
  const auto gpt = [&](const Words& more) {
    std::vector<std::string> words = small_gpt(more);
    const Outcome done = run_program(words);
    EXPECT_EQ(done.code, 0) << done.err;
    return done;
  };
  gpt({"--steps=3", "--pp=2", "--checkpoint", dir / "base"});
  const Words recipe{"--lora=blocks.*.attention,blocks.1.mlp",
                     "--lora-rank=2",
                     "--init",
                     dir / "base",
                     "--checkpoint",
                     dir / "run",
                     "--lr=0.05"};
  const auto with = [&](Words more) {
    more.insert(more.end(), recipe.begin(), recipe.end());
    return more;
  };
  gpt(with({"--steps=3", "--pp=2", "--tp=2", "--log-json", dir / "a.log"}));
  gpt(with({"--steps=5", "--pp=1", "--resume", "--log-json", dir / "b.log"}));
  const auto continues = [&](const std::string& run) {
    return expect_done({"generate", "--checkpoint", dir / run, "--prompt-tokens=1,2,3", "--greedy"}).out;
  };
  EXPECT_NE(continues("run"), continues("base"));
  EXPECT_THAT(expect_done({"inspect", "--checkpoint", dir / "run"}).out,
              HasSubstr("modules: token, blocks, norm"));
  std::vector<std::string> words = small_gpt(with({"--steps=6", "--resume", "--lora-alpha=4"}));
  const Outcome other = run_program(words);
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("adapters of another kind"));
}

TEST(ToolTrainLora, RefusesBadInput) {
  const TempDir dir;
  expect_refused(language({"--lora-rank=4"}), "--lora-rank needs --lora");
  expect_refused(language({"--lora-dropout=0.1"}), "--lora-dropout needs --lora");
  expect_refused(language({"--lora=layers", "--lora-rank=0"}), "--lora-rank must be between 1 and");
  expect_refused(language({"--lora=layers", "--lora-alpha=-1"}), "--lora-alpha must be greater than 0");
  expect_refused(language({"--lora=layers", "--lora-dropout=1"}), "--lora-dropout must be");
  expect_refused(language({"--lora=layer"}), "no linear layer or embedding of the model matches 'layer'");
  expect_refused(language({"--lora=layer"}), "did you mean layers");
  expect_refused(language({"--lora=head"}), "the table of an embedding");
  const Outcome tied = run_program(small_gpt({"--lora=token", "--dry-run"}));
  EXPECT_EQ(tied.code, 2);
  EXPECT_THAT(tied.err, HasSubstr("it is also the head of the GPT"));
  expect_refused(language({"--lora=layers", "--freeze=layers"}), "every parameter of the model is frozen");
  const Words run{"--checkpoint", dir / "run"};
  const auto with = [&](Words more) {
    more.insert(more.end(), run.begin(), run.end());
    return language(more);
  };
  expect_done(with({"--lora=layers"}));
  Words resumed = with({"--resume"});
  expect_refused(resumed, "contains only the adapters");
  expect_refused(with({"--resume", "--lora=layers", "--lora-rank=2"}), "adapters of another kind");
  expect_refused(language({"--init", dir / "run", "--init-rename=layers=blocks"}),
                 "rename rules do not apply to the adapters");
  expect_refused({"train", kArchives + "mlp.pt2", "--data=" + kArchives + "mlp.safetensors", "--loss=mse",
                  "--batch=8", "--steps=1", "--init", dir / "run"},
                 "no parameter or buffer 'layers.0.");
}

}  // namespace
}  // namespace penstock::test
