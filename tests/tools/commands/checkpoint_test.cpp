// `penstock checkpoint` through the real binary, and its files as read by Python.
#include "support/counted_tensors.h"
#include "support/program.h"
#include "support/random_partitions.h"
#include "support/same_bits.h"

#include <penstock/checkpoint/convert.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/thread_ranks.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace penstock::checkpoint {
namespace {

using namespace test;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kStateDictScript = PENSTOCK_SOURCE_DIR "/tests/tools/commands/state_dict.py";
const std::string kCheckpointTests = PENSTOCK_SOURCE_DIR "/tests/checkpoint/";

//! Saves tensors as a checkpoint of three ranks in a random partition, with AdamW states and a note.
void save_partitioned(const std::map<std::string, at::Tensor>& tensors, const std::string& directory,
                      std::int64_t step,
                      const std::map<std::string, std::vector<std::string>>& aliases = {}) {
  Random random(4);
  std::map<std::string, std::vector<std::vector<Region>>> how;
  for (const auto& [name, tensor] : tensors) how.emplace(name, partition(random, tensor.sizes().vec(), 3));
  comm::run_thread_ranks(3, [&](comm::World& world) {
    std::vector<Piece> pieces;
    for (const auto& [name, tensor] : tensors) {
      for (Piece& piece : pieces_of(name, tensor, how.at(name)[world.rank().index()])) {
        if (aliases.contains(name)) piece.aliases = aliases.at(name);
        Piece state = piece;
        state.kind = PieceKind::Optimizer;
        state.state = "exp_avg";
        pieces.push_back(std::move(state));
        pieces.push_back(std::move(piece));
      }
    }
    CheckpointWriter(directory, world.group()).save(step, pieces, {{"config", "layers = 2\n"}});
  });
}

std::map<std::string, at::Tensor> small_model() {
  return {{"a.weight", at::randn({6, 5})},
          {"a.bias", at::randn({6}).to(at::kBFloat16)},
          {"count", at::full({}, 7, at::kLong)}};
}

TEST(ToolCheckpoint, InspectsNewestAndPrintsJson) {
  const TempDir dir;
  save_partitioned(small_model(), dir.path(), 120, {{"a.weight", {"b.weight"}}});
  const auto shown = penstock::test::penstock({"checkpoint", "inspect", dir.path()});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("step-00000120: step 120, "));
  EXPECT_THAT(shown.out, HasSubstr("  parameter: 3 tensors, 140 B"));
  EXPECT_THAT(shown.out, HasSubstr("a.weight             F32 [6, 5]"));
  EXPECT_THAT(shown.out, HasSubstr("= b.weight"));
  EXPECT_THAT(shown.out, HasSubstr("exp_avg of a.bias    BF16 [6]"));
  const auto json = penstock::test::penstock({"checkpoint", "inspect", dir / "step-00000120", "--json"});
  EXPECT_THAT(json.out, HasSubstr("\"step\":120"));
  EXPECT_THAT(json.out, HasSubstr("\"notes\":{\"config\":\"layers = 2\\n\"}"));
}

TEST(ToolCheckpoint, VerifyDetectsFlippedByte) {
  const TempDir dir;
  save_partitioned(small_model(), dir.path(), 1);
  save_partitioned(small_model(), dir.path(), 2);
  std::filesystem::create_directory(dir / "step-00000003.incomplete");
  const auto intact = penstock::test::penstock({"checkpoint", "verify", dir.path()});
  EXPECT_EQ(intact.code, 0) << intact.out << intact.err;
  EXPECT_THAT(intact.out, HasSubstr("step-00000002: intact"));
  EXPECT_THAT(intact.out, HasSubstr("step-00000003.incomplete: incomplete"));
  std::filesystem::path file;  // a file with tensors: a rank without tensors writes none
  for (const auto& entry : std::filesystem::directory_iterator(dir / "step-00000002"))
    if (entry.path().extension() == ".safetensors") file = entry.path();
  ASSERT_FALSE(file.empty());
  std::string bytes = slurp(file.string());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  const auto damaged = penstock::test::penstock({"checkpoint", "verify", dir.path()});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.out, HasSubstr("step-00000001: intact"));
  EXPECT_THAT(damaged.out, HasSubstr("step-00000002: DAMAGED"));
  EXPECT_THAT(damaged.out, HasSubstr("error: " + file.filename().string() + ": is damaged: its checksum is"));
  EXPECT_THAT(penstock::test::penstock({"checkpoint", "verify", dir.path(), "--json"}).out,
              HasSubstr("\"ok\":false}"));
}

TEST(ToolCheckpoint, ConvertsToOneFileAndBack) {
  const TempDir dir;
  const auto model = small_model();
  save_partitioned(model, dir / "a", 9);
  const std::string file = dir / "model.safetensors";
  EXPECT_EQ(penstock::test::penstock({"checkpoint", "convert", dir / "a", file}).code, 0);
  const auto loaded = load_safetensors(file);
  ASSERT_EQ(loaded.size(), model.size());
  for (const auto& [name, tensor] : model) EXPECT_TRUE(same_bits(loaded.at(name), tensor)) << name;
  EXPECT_EQ(SafetensorsFile(file).metadata().at("format"), "pt");

  const auto back = penstock::test::penstock({"checkpoint", "convert", file, dir / "b"});
  EXPECT_EQ(back.out, "made " + dir / "b/step-00000009\n");
  const ResumePoint found = find_resume_point(dir / "b");
  EXPECT_EQ(found.checkpoint.step(), 9);
  for (const auto& [name, tensor] : model)
    EXPECT_TRUE(same_bits(found.checkpoint.read(name), tensor)) << name;

  // Everything is restored, including optimizer states and notes.
  EXPECT_EQ(
      penstock::test::penstock({"checkpoint", "convert", dir / "a", file, "--everything", "--force"}).code,
      0);
  EXPECT_EQ(penstock::test::penstock({"checkpoint", "convert", file, dir / "c"}).code, 0);
  const Checkpoint all = open_checkpoint(dir / "c");
  EXPECT_EQ(all.note("config"), "layers = 2\n");
  EXPECT_EQ(all.tensors().size(), 2 * model.size());
  EXPECT_TRUE(same_bits(all.read("a.weight", "exp_avg"), model.at("a.weight")));
  EXPECT_EQ(penstock::test::penstock({"checkpoint", "verify", dir / "c"}).code, 0);
}

TEST(ToolCheckpoint, ConvertOverwritesOnlyIfForced) {
  const TempDir dir;
  save_partitioned(small_model(), dir / "a", 9);
  const std::string file = dir / "data.safetensors";
  save_safetensors(file, {{"precious", at::ones({3})}});
  const std::string before = slurp(file);
  const auto convert = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"checkpoint", "convert"});
    return penstock::test::penstock(words);
  };
  const auto refused = convert({dir / "a", file});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("'" + file + "' already exists"));
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  EXPECT_EQ(slurp(file), before);
  EXPECT_EQ(convert({dir / "a", file, "--force"}).code, 0);
  EXPECT_EQ(load_safetensors(file).size(), small_model().size());

  // Back, into a directory with a checkpoint of that step, but of another model.
  save_safetensors(dir / "other.safetensors", {{"w", at::ones({3})}}, {{"penstock.step", "9"}});
  const auto kept = convert({dir / "other.safetensors", dir / "a"});
  EXPECT_EQ(kept.code, 2);
  EXPECT_THAT(kept.err, HasSubstr("step-00000009' already exists"));
  EXPECT_THAT(kept.err, HasSubstr("--force"));
  EXPECT_NE(open_checkpoint(dir / "a").find("a.weight"), nullptr);
  EXPECT_EQ(convert({dir / "other.safetensors", dir / "a", "--force"}).code, 0);
  EXPECT_NE(open_checkpoint(dir / "a").find("w"), nullptr);
}

TEST(ToolCheckpoint, ConvertRequiresSafetensorsExtension) {
  const TempDir dir;
  save_partitioned(small_model(), dir / "a", 9);
  for (const char* name : {"model.pt2", "model"}) {
    const auto refused = penstock::test::penstock({"checkpoint", "convert", dir / "a", dir / name});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("FILE.safetensors"));
    EXPECT_FALSE(std::filesystem::exists(dir / name));
  }
  const auto nowhere =
      penstock::test::penstock({"checkpoint", "convert", dir / "a", dir / "no/such/a.safetensors"});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("there is no directory"));
  EXPECT_FALSE(std::filesystem::exists(dir / "no"));
}

TEST(ToolCheckpoint, ReportsErrors) {
  const TempDir dir;
  const auto expect = [](const std::vector<std::string>& words, int code, const std::string& text) {
    std::vector<std::string> line = {"checkpoint"};
    line.insert(line.end(), words.begin(), words.end());
    const auto done = penstock::test::penstock(line);
    EXPECT_EQ(done.code, code) << done.err;
    EXPECT_THAT(done.err + done.out, HasSubstr(text));
  };
  expect({"verfiy", dir.path()}, 2, "did you mean verify?");
  expect({"inspect", dir.path()}, 1, "contains no complete checkpoint");
  expect({"inspect", dir / "missing"}, 1, "No such file or directory");
  expect({"verify", dir.path()}, 1, "DAMAGED");
  expect({"convert", dir.path()}, 2, "needs a target");
  expect({"convert", dir / "missing", dir / "b"}, 1, "cannot open");
  expect({"convert", kCheckpointTests + "make_files.py", dir / "b"}, 1, "safetensors file");
  expect({"inspect", dir.path(), "more"}, 2, "take one path");
}

TEST(ToolCheckpoint, PythonReadsConvertedFileAsStateDict) {
  const char* given = std::getenv("PENSTOCK_PYTHON");
  const std::string interpreter = given != nullptr && *given != '\0' ? given : "python3";
  const TempDir dir;
  const std::string original = dir / "original.safetensors", converted = dir / "converted.safetensors";
  const auto made = run_program(
      {interpreter, kStateDictScript, "make", original, dir / "model.pt2", dir / "data.safetensors"});
  if (made.code == 77)
    GTEST_SKIP() << "this Python lacks torch, numpy or safetensors; ./dev test installs them";
  ASSERT_EQ(made.code, 0) << made.err;
  // The tied weight is one tensor with two names in the checkpoint, and two tensors in the file.
  auto tensors = load_safetensors(original);
  ASSERT_EQ(tensors.erase("head.weight"), 1U);
  save_partitioned(tensors, dir / "run", 30, {{"token.weight", {"head.weight"}}});
  EXPECT_EQ(penstock::test::penstock({"checkpoint", "convert", dir / "run", converted}).code, 0);
  // After training on two ranks, the checkpoint still contains the full state_dict of the exported model.
  const auto trained = penstock::test::penstock(
      {"train", dir / "model.pt2", "--data", dir / "data.safetensors", "--ranks", "2", "--steps", "2",
       "--batch", "8", "--no-shuffle", "--optimizer", "sgd", "--lr", "0.5", "--checkpoint", dir / "trained"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(
      penstock::test::penstock({"checkpoint", "convert", dir / "trained", dir / "trained.safetensors"}).code,
      0);
  const auto checked =
      run_program({interpreter, kStateDictScript, "check", converted, dir / "trained.safetensors"});
  EXPECT_EQ(checked.out, "agrees\n") << checked.err;

  // With the installed Python: it reads every dtype and shape that we write, and its files equal the
  // committed ones.
  EXPECT_EQ(run_program({interpreter, kCheckpointTests + "make_files.py", dir / "files"}).code, 0);
  std::vector<std::string> theirs, ours;
  for (const std::string name : {"all_dtypes", "shapes", "none"}) {
    theirs.push_back(dir / ("files/" + name + ".safetensors"));
    ours.push_back(dir / name);
    EXPECT_EQ(slurp(theirs.back()), slurp(kCheckpointTests + "files/" + name + ".safetensors")) << name;
    save_safetensors(ours.back(), load_safetensors(theirs.back()), SafetensorsFile(theirs.back()).metadata());
  }
  const auto read = [&](std::vector<std::string> files) {
    files.insert(files.begin(), {interpreter, kCheckpointTests + "make_files.py", "--check"});
    return run_program(files);
  };
  const auto expected = read(theirs);
  EXPECT_EQ(expected.code, 0) << expected.err;
  EXPECT_THAT(expected.out, HasSubstr("a.float8_e4m3fn float8_e4m3fn [2, 3] "));
  EXPECT_EQ(read(ours).out, expected.out);
}

}  // namespace
}  // namespace penstock::checkpoint
