// `penstock checkpoint convert` to and from the format of Hugging Face and to exported models, and `eval` and
// `inspect` with the weights of a checkpoint. Python reads the results.
#include "support/program.h"

#include <penstock/checkpoint/safetensors.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

namespace penstock::test {
namespace {

using testing::HasSubstr;

const std::string kScript = PENSTOCK_SOURCE_DIR "/tests/tools/commands/converted_models.py";

std::string interpreter() {
  const char* given = std::getenv("PENSTOCK_PYTHON");
  return given != nullptr && *given != '\0' ? given : "python3";
}

Outcome expect_done(const std::vector<std::string>& words) {
  const Outcome done = penstock(words);
  EXPECT_EQ(done.code, 0) << done.err;
  return done;
}

void expect_refused(const std::vector<std::string>& words, const std::string& text) {
  const Outcome refused = penstock(words);
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr(text));
}

TEST(ToolConvert, PythonReadsShardsAndTrainedModels) {
  const TempDir dir;
  const Outcome made = run_program({interpreter(), kScript, "make", dir.path()});
  if (made.code == 77) GTEST_SKIP() << "this Python lacks torch, numpy or safetensors";
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string model = dir / "model.pt2", run = dir / "run";
  expect_done({"train", model, "--data", dir / "data.safetensors", "--ranks=2", "--steps=3", "--batch=8",
               "--lr=0.05", "--checkpoint", run});
  expect_done({"checkpoint", "convert", run, dir / "plain.safetensors"});
  std::filesystem::create_directory(dir / "shards");
  std::ofstream(dir / "shards/model-00009-of-00009.safetensors") << "of an earlier export";
  const Outcome sharded =
      expect_done({"checkpoint", "convert", run, dir / "shards", "--max-shard-size", "300"});
  EXPECT_EQ(sharded.out, "made " + dir / "shards/model.safetensors.index.json\n");
  expect_done({"checkpoint", "convert", run, dir / "trained.pt2", "--model", model});
  const auto eval = [&](const std::string& archive, const std::string& output) {
    return std::vector<std::string>{"eval",     archive,      "--input",         dir / "input.safetensors",
                                    "--output", dir / output, "--microbatches=1"};
  };
  expect_done(eval(dir / "trained.pt2", "archive.safetensors"));
  std::vector<std::string> with_checkpoint = eval(model, "checkpoint.safetensors");
  with_checkpoint.insert(with_checkpoint.end(), {"--checkpoint", run, "--pp=2"});
  expect_done(with_checkpoint);
  const Outcome checked = run_program({interpreter(), kScript, "check", dir.path()});
  EXPECT_EQ(checked.out, "agrees\n") << checked.err;

  // The way back gives the same checkpoint, from the directory, its index, and from one file.
  expect_done({"checkpoint", "convert", dir / "shards", dir / "back"});
  expect_done({"checkpoint", "convert", dir / "shards/model.safetensors.index.json", dir / "from-index"});
  expect_done({"checkpoint", "convert", dir / "back", dir / "one", "--max-shard-size", "1GB"});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir / "one"), {}), 1);
  expect_done({"checkpoint", "convert", dir / "one", dir / "from-one"});
  for (const char* name : {"back", "from-index", "from-one"}) {
    EXPECT_EQ(penstock({"checkpoint", "verify", dir / name}).code, 0);
    EXPECT_TRUE(std::filesystem::exists(dir / (std::string(name) + "/step-00000003"))) << name;
    expect_done({"checkpoint", "convert", dir / name, dir / "again.safetensors", "--force"});
    EXPECT_EQ(slurp(dir / "again.safetensors"), slurp(dir / "plain.safetensors")) << name;
  }

  EXPECT_EQ(expect_done({"inspect", model, "--checkpoint", run}).out, expect_done({"inspect", model}).out);
  const std::string other = PENSTOCK_SOURCE_DIR "/tests/train/archives/mlp.pt2";
  expect_refused({"inspect", other, "--checkpoint", run}, "does not match the model");
  expect_refused({"checkpoint", "convert", run, dir / "other.pt2", "--model", other}, "body.0.bias");
  expect_refused({"checkpoint", "convert", run, dir / "other.pt2"}, "--model MODEL.pt2");
  expect_refused({"checkpoint", "convert", run, dir / "other", "--model", model}, "ends in .pt2");
  expect_refused({"checkpoint", "convert", run, model, "--model", model, "--force"},
                 "overwrite an input file");
  expect_refused({"checkpoint", "convert", run, dir / "trained.pt2", "--model", model}, "already exists");
  expect_refused({"checkpoint", "convert", run, dir / "shards", "--max-shard-size=1MB"}, "already exists");
  expect_refused({"checkpoint", "convert", run, dir / "x", "--max-shard-size=few"}, "number of bytes");
  expect_refused({"checkpoint", "convert", run, dir / "x", "--max-shard-size=0"}, "at least 1 byte");
  expect_refused({"checkpoint", "convert", run, run, "--max-shard-size=1MB"}, "is a checkpoint");
  EXPECT_FALSE(std::filesystem::exists(dir / "other.pt2"));
}

// A trained language model, whose head is tied to its token embedding, and the command that evaluates it.
struct TrainedLanguage {
  std::string archives = PENSTOCK_SOURCE_DIR "/tests/train/archives/", model = archives + "language.pt2";
  TempDir dir;
  std::string run = dir / "run";

  TrainedLanguage() {
    expect_done({"train", model, "--data=" + archives + "language.safetensors", "--ranks=1", "--steps=2",
                 "--batch=8", "--checkpoint=" + run});
    expect_done({"checkpoint", "convert", run, dir / "plain.safetensors"});
  }
  std::map<std::string, at::Tensor> outputs(const std::vector<std::string>& weights) const {
    std::vector<std::string> words{"eval", model, "--input=" + archives + "language.safetensors",
                                   "--output=" + dir / "output.safetensors", "--pp=2"};
    words.insert(words.end(), weights.begin(), weights.end());
    expect_done(words);
    return checkpoint::load_safetensors(dir / "output.safetensors");
  }
};

TEST(ToolConvert, RenamesAndConvertsWeights) {
  const TrainedLanguage language;
  const TempDir& dir = language.dir;
  const std::string to = "--rename=token=model.wte,head=lm_head,layers.*.up=model.h.*.fc",
                    from = "--rename=model.wte=token,lm_head=head,model.h.*.fc=layers.*.up";
  const auto plain = checkpoint::load_safetensors(dir / "plain.safetensors");
  const auto expected_name = [](std::string name) {
    if (name == "token.weight") return std::string("model.wte.weight");
    if (name == "head.weight") return std::string("lm_head.weight");
    if (const auto at = name.find(".up."); at != std::string::npos)
      return "model.h." + name.substr(7, at - 7) + ".fc." + name.substr(at + 4);
    return name;
  };
  for (const auto& [option, dtype] : std::map<std::string, at::ScalarType>{
           {"stored", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}, {"float32", at::kFloat}}) {
    const std::string file = dir / (option + ".safetensors"), folder = dir / option;
    expect_done({"checkpoint", "convert", language.run, file, to, "--dtype=" + option});
    expect_done(
        {"checkpoint", "convert", language.run, folder, to, "--dtype=" + option, "--max-shard-size=1MB"});
    for (const std::string& written : {file, folder + "/model.safetensors"}) {
      const auto tensors = checkpoint::load_safetensors(written);
      EXPECT_EQ(tensors.size(), plain.size());
      for (const auto& [name, tensor] : plain) {
        ASSERT_TRUE(tensors.contains(expected_name(name))) << name;
        const at::Tensor& found = tensors.at(expected_name(name));
        EXPECT_EQ(found.scalar_type(), dtype);
        EXPECT_TRUE(at::equal(found, tensor.to(dtype))) << name;
      }
    }
  }
  // The way back, when weights are read and when they are converted.
  const auto trained = language.outputs({"--checkpoint=" + language.run});
  for (const auto& [name, tensor] : language.outputs({"--checkpoint=" + dir / "float32.safetensors", from}))
    EXPECT_TRUE(at::equal(tensor, trained.at(name))) << name;
  EXPECT_FALSE(at::equal(language.outputs({}).at("output.logits"), trained.at("output.logits")));
  expect_done({"inspect", language.model, "--checkpoint=" + dir / "bf16", from});
  expect_done({"checkpoint", "convert", dir / "float32.safetensors", dir / "back", from});
  expect_done({"checkpoint", "convert", dir / "back", dir / "again.safetensors"});
  for (const auto& [name, tensor] : checkpoint::load_safetensors(dir / "again.safetensors"))
    EXPECT_TRUE(at::equal(tensor, plain.at(name))) << name;
  expect_done({"checkpoint", "convert", dir / "bf16.safetensors", dir / "new.pt2", from,
               "--model=" + language.model});
}

TEST(ToolConvert, RefusesChangesThatDoNotFit) {
  const TrainedLanguage language;
  const TempDir& dir = language.dir;
  const auto refused = [&](std::vector<std::string> more, const std::string& text) {
    more.insert(more.begin(), {"checkpoint", "convert"});
    expect_refused(more, text);
  };
  const std::string& run = language.run;
  const std::string file = dir / "x.safetensors";
  refused({run, file, "--rename=token"}, "--rename: the rename rule 'token' is not of the form FROM=TO");
  refused({run, file, "--rename=nothing=x"}, "no tensor matches the rule 'nothing=x' of --rename");
  refused({run, file, "--rename=layers.*=layers.0"}, "--rename gives two tensors the name");
  refused({run, file, "--rename=token.weight="}, "--rename removes the complete name 'token.weight'");
  refused({run, file, "--dtype=bf16", "--everything"}, "leave out --everything");
  refused({run, dir / "x.pt2", "--model=" + language.model, "--dtype=bf16"}, "--dtype is for weights");
  refused({dir / "plain.safetensors", dir / "back", "--dtype=bf16"}, "--dtype is for weights");
  checkpoint::save_safetensors(dir / "large.safetensors", {{"w", at::full({2}, 1e6)}});
  expect_done({"checkpoint", "convert", dir / "large.safetensors", dir / "large"});
  refused({dir / "large", file, "--dtype=fp16"}, "the tensor 'w' has numbers that are too large");
  expect_done({"checkpoint", "convert", dir / "large", file, "--dtype=bf16"});
}

}  // namespace
}  // namespace penstock::test
