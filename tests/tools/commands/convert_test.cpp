// `penstock checkpoint convert` to and from the format of Hugging Face and to exported models, and `eval` and
// `inspect` with the weights of a checkpoint. Python reads the results.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

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

}  // namespace
}  // namespace penstock::test
