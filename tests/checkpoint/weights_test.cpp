// Weights in every format that `open_weights` reads, and rules that rename their tensors.
#include "support/error_message.h"
#include "support/same_bits.h"
#include "support/temp_dir.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/convert.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/checkpoint/weights.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace penstock::checkpoint {
namespace {

using test::same_bits;
using test::TempDir;
using Tensors = std::map<std::string, at::Tensor>;

std::string rename(const std::string& name, const std::vector<std::string>& texts) {
  std::vector<RenameRule> rules;
  for (const std::string& text : texts) rules.push_back(parse_rename_rule(text));
  std::vector<int> uses(rules.size(), 0);
  return renamed(name, rules, uses);
}

TEST(CheckpointRename, ReplacesPathsInOrder) {
  EXPECT_EQ(rename("transformer.h.12.norm.weight", {"transformer.h.*=blocks.*"}), "blocks.12.norm.weight");
  EXPECT_EQ(rename("model.head.weight", {"model="}), "head.weight");
  EXPECT_EQ(rename("head.weight", {"=model"}), "model.head.weight");
  EXPECT_EQ(rename("head.weight", {"head.weight=token.weight"}), "token.weight");
  EXPECT_EQ(rename("model.layers.3.q.weight", {"model=", "layers.*.q=blocks.*.query"}),
            "blocks.3.query.weight");
  EXPECT_EQ(rename("a1.b2.weight", {"a*.b*=x*.y*"}), "x1.y2.weight");
  EXPECT_EQ(rename("stage_3_layer_4.weight", {"stage_*_layer_*=stage.*.layer.*"}), "stage.3.layer.4.weight");
  EXPECT_EQ(rename("blocks.3.norm.weight", {"*.*.norm=norms.*"}), "norms.blocks.weight");
  // Whole components only, and `*` does not match a dot.
  EXPECT_EQ(rename("models.head.weight", {"model="}), "models.head.weight");
  EXPECT_EQ(rename("a.b.c", {"a.*.d=x"}), "a.b.c");
  EXPECT_EQ(rename("a.b.c.d", {"a.*.d=x"}), "a.b.c.d");
  EXPECT_ERROR(parse_rename_rule("model"), UsageError, "is not of the form FROM=TO");
  EXPECT_ERROR(parse_rename_rule("="), UsageError, "is not of the form FROM=TO");
  EXPECT_ERROR(parse_rename_rule("a.*=b.*.*"), UsageError, "more '*' in TO than in FROM");
}

Tensors small_weights() {
  return {{"model.a.weight", at::randn({4, 3})},
          {"model.a.bias", at::randn({4}).to(at::kBFloat16)},
          {"model.b.scale", at::full({}, 2.5, at::kDouble)}};
}

std::map<std::string, std::string> index_of(const Tensors& tensors, const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& [name, tensor] : tensors) {
    files[name] = "model-0000" + std::to_string(files.size() + 1) + "-of-00003.safetensors";
    save_safetensors(directory + "/" + files[name], {{name, tensor}});
  }
  return files;
}

void write_index(const std::string& directory, const std::map<std::string, std::string>& files) {
  std::string text = "{\"metadata\": {\"total_size\": 64}, \"weight_map\": {";
  for (const auto& [name, file] : files)
    text += (text.back() == '{' ? "\"" : ", \"") + name + "\": \"" + file + "\"";
  std::ofstream(directory + "/model.safetensors.index.json") << text << "}}";
}

void expect_same(const Checkpoint& opened, const Tensors& tensors) {
  ASSERT_EQ(opened.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same_bits(opened.read(name), tensor)) << name;
}

TEST(CheckpointWeights, OpensEveryFormat) {
  const TempDir dir;
  const Tensors tensors = small_weights();
  for (const char* folder : {"one", "sharded"}) std::filesystem::create_directory(dir / folder);
  save_safetensors(dir / "one/model.safetensors", tensors);
  expect_same(open_weights(dir / "one/model.safetensors"), tensors);
  expect_same(open_weights(dir / "one"), tensors);
  write_index(dir / "sharded", index_of(tensors, dir / "sharded"));
  expect_same(open_weights(dir / "sharded"), tensors);
  expect_same(open_weights(dir / "sharded/model.safetensors.index.json"), tensors);
  // A checkpoint has optimizer states, too.
  Tensors everything = tensors;
  everything["optimizer/exp_avg/model.a.weight"] = at::zeros({4, 3});
  save_safetensors(dir / "everything.safetensors", everything);
  const auto step = import_safetensors(dir / "everything.safetensors", dir / "run");
  EXPECT_EQ(Checkpoint(step).tensors().size(), 4U);
  expect_same(open_weights(dir / "run"), tensors);
  expect_same(open_weights(step), tensors);
}

TEST(CheckpointWeights, LoadsRegionsCastsAndFindsTiedNames) {
  const TempDir dir;
  const Tensors tensors = small_weights();
  save_safetensors(dir / "w.safetensors", tensors);
  const Checkpoint opened = open_weights(dir / "w.safetensors", {parse_rename_rule("model=")});
  Piece rows = full_piece("a.weight", at::zeros({2, 3}, at::kDouble));
  rows.shape = {4, 3};
  rows.region = Box{{1, 0}, {2, 3}};
  Piece tied = full_piece("other", at::zeros({4}));
  tied.aliases = {"a.bias"};
  const LoadReport report =
      opened.load({rows, tied, full_piece("b.scale", at::zeros({}))}, {.convert_dtypes = true});
  EXPECT_TRUE(report.extra.empty());
  EXPECT_TRUE(at::equal(rows.local, tensors.at("model.a.weight").slice(0, 1, 3).to(at::kDouble)));
  EXPECT_TRUE(at::equal(tied.local, tensors.at("model.a.bias").to(at::kFloat)));
  EXPECT_EQ(report.bytes_used, 2U * 3 * 4 + 4 * 2 + 8);
}

TEST(CheckpointWeights, ReportsErrors) {
  const TempDir dir;
  const Tensors tensors = small_weights();
  EXPECT_ERROR(open_weights(dir / "none"), UsageError, "there are no weights at");
  EXPECT_ERROR(open_weights(dir.path()), UsageError, "contains no weights");
  std::ofstream(dir / "pytorch_model.bin") << "pickle";
  EXPECT_ERROR(open_weights(dir / "pytorch_model.bin"), UsageError, "is not a .safetensors file");
  auto files = index_of(tensors, dir.path());
  files["model.c"] = files.begin()->second;
  files["model.d"] = "model-00009-of-00009.safetensors";
  write_index(dir.path(), files);
  EXPECT_ERROR(open_weights(dir.path()), CheckpointError, "does not contain 'model.c'");
  EXPECT_ERROR(open_weights(dir.path()), CheckpointError, "'model-00009-of-00009.safetensors' is missing");
  write_index(dir.path(), {{"model.a.bias", "../secret.safetensors"}});
  EXPECT_ERROR(open_weights(dir.path()), ParseError, "is not the name of a file in the same directory");
  save_safetensors(dir / "w.safetensors", tensors);
  const auto opened_with = [&](const std::string& rule) {
    open_weights(dir / "w.safetensors", {parse_rename_rule(rule)});
  };
  EXPECT_ERROR(opened_with("modle="), UsageError, "matches the rename rule 'modle='");
  EXPECT_ERROR(opened_with("model.*.*=x"), UsageError, "the same name 'x'");
  EXPECT_ERROR(opened_with("model.b.scale="), UsageError, "removes the complete name");
}

}  // namespace
}  // namespace penstock::checkpoint
