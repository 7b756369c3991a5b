// `penstock train` of exported models whose parameters are bfloat16 or float16, and the commands that read
// their checkpoints.
#include "support/program.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/safetensors.h>
#include <penstock/graph/pt2.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace penstock::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

const std::string kModels = PENSTOCK_SOURCE_DIR "/tests/train/archives/";

class ToolParamDtype : public testing::Test {
 protected:
  // Writes the data in the dtype of the model's inputs.
  std::string data_in(at::ScalarType dtype) const {
    auto tensors = checkpoint::load_safetensors(kModels + "language.safetensors");
    tensors["weight"] = tensors.at("weight").to(dtype);
    std::string path = dir_ / (std::string(c10::toString(dtype)) + ".safetensors");
    checkpoint::save_safetensors(path, tensors);
    return path;
  }

  Words train(const std::string& model, at::ScalarType input, const Words& more) const {
    Words words{"train",     kModels + model, "--data=" + data_in(input),
                "--batch=8", "--lr=0.01",     "--no-shuffle"};
    if (std::none_of(more.begin(), more.end(), [](const auto& word) { return word.starts_with("--steps="); }))
      words.push_back("--steps=3");
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  static Outcome expect_done(const Words& words) {
    const Outcome done = penstock(words);
    EXPECT_EQ(done.code, 0) << done.err;
    return done;
  }

  TempDir dir_;
};

TEST_F(ToolParamDtype, ArchivesInBfloat16HaveMasterWeights) {
  const std::string run = dir_ / "run", model = kModels + "language_bf16.pt2";
  const Outcome done =
      expect_done(train("language_bf16.pt2", at::kBFloat16, {"--ranks=2", "--checkpoint=" + run}));
  EXPECT_THAT(done.out, HasSubstr("parameters in bfloat16 are trained with master weights"));
  const checkpoint::Checkpoint saved(run + "/step-00000003");
  expect_done({"checkpoint", "convert", run, dir_ / "trained.pt2", "--model", model});
  const graph::Pt2Archive trained(dir_ / "trained.pt2");
  for (const checkpoint::StoredTensor& tensor : saved.tensors()) {
    EXPECT_EQ(tensor.dtype, at::kFloat) << tensor.name;
    if (tensor.kind != checkpoint::PieceKind::Parameter) continue;
    EXPECT_TRUE(at::equal(trained.load(tensor.name), saved.read(tensor.name).to(at::kBFloat16)));
  }
  auto input = checkpoint::load_safetensors(data_in(at::kBFloat16));
  input.erase("target");
  checkpoint::save_safetensors(dir_ / "input.safetensors", input);
  const auto outputs = [&](const Words& words, const std::string& name) {
    Words eval{"eval"};
    eval.insert(eval.end(), words.begin(), words.end());
    eval.insert(eval.end(), {"--input", dir_ / "input.safetensors", "--output", dir_ / name});
    expect_done(eval);
    return checkpoint::load_safetensors(dir_ / name).at("output.logits");
  };
  EXPECT_TRUE(at::equal(outputs({model, "--checkpoint", run}, "a.safetensors"),
                        outputs({dir_ / "trained.pt2"}, "b.safetensors")));

  // The master weights are those of a run in float32, too.
  const Outcome resumed = expect_done(
      train("language_bf16.pt2", at::kFloat,
            {"--ranks=1", "--checkpoint=" + run, "--resume", "--steps=4", "--param-dtype=float32"}));
  EXPECT_THAT(resumed.out, HasSubstr("--param-dtype was"));
  EXPECT_THAT(resumed.out, Not(HasSubstr("master weights")));
}

TEST_F(ToolParamDtype, DryRunCountsMasterWeights) {
  const auto forecast = [&](const std::string& model, at::ScalarType input, Words more) {
    more.insert(more.end(), {"--dry-run", "--json", "--ranks=1"});
    return json::parse(expect_done(train(model, input, more)).out);
  };
  const auto bytes = [](const json& run, const char* key) {
    return run.at("ranks").at(0).at(key).get<double>();
  };
  const json exact = forecast("language.pt2", at::kFloat, {});
  EXPECT_EQ(exact.at("optimizer").at("master_weights_of"), json::array());
  const auto elements = exact.at("model").at("parameters").get<double>();
  ASSERT_EQ(bytes(exact, "parameter_bytes"), 4 * elements);
  for (const auto& [model, input, option] :
       {std::tuple{"language_bf16.pt2", at::kBFloat16, "auto"}, {"language.pt2", at::kFloat, "bf16"}}) {
    SCOPED_TRACE(model);
    const json run = forecast(model, input, {std::string("--param-dtype=") + option});
    EXPECT_EQ(run.at("optimizer").at("param_dtype"), option);
    EXPECT_EQ(run.at("optimizer").at("master_weights_of"), json({"bfloat16"}));
    EXPECT_EQ(bytes(run, "parameter_bytes"), 6 * elements);
    for (const char* const key : {"gradient_bytes", "optimizer_bytes"})
      EXPECT_EQ(bytes(run, key), bytes(exact, key)) << key;
  }
  const json converted = forecast("language_bf16.pt2", at::kFloat, {"--param-dtype=float32"});
  for (const char* const key : {"parameter_bytes", "gradient_bytes", "optimizer_bytes"})
    EXPECT_EQ(bytes(converted, key), bytes(exact, key)) << key;
  // Of the base of adapters, there is nothing but the parameters themselves.
  const json adapters = forecast("language_bf16.pt2", at::kBFloat16, {"--lora=layers.*", "--lora-rank=2"});
  const auto trained = adapters.at("model").at("trained_parameters").get<double>();
  EXPECT_EQ(bytes(adapters, "parameter_bytes"), 2 * elements + 6 * trained);
  const Outcome text = expect_done(train("language_bf16.pt2", at::kBFloat16, {"--dry-run", "--ranks=1"}));
  EXPECT_THAT(text.out, HasSubstr("parameters in bfloat16 with float32 master weights"));
}

TEST_F(ToolParamDtype, ArchivesInFloat16ScaleTheLoss) {
  const std::string log = dir_ / "log.jsonl";
  expect_done(train("language_fp16.pt2", at::kHalf, {"--ranks=1", "--loss-scale=1024", "--log-json=" + log}));
  EXPECT_THAT(slurp(log), HasSubstr("\"loss_scale\":1024"));
  const Outcome refused = penstock(train("language_bf16.pt2", at::kBFloat16, {"--loss-scale=1024"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--loss-scale does not apply to --precision float32"));
}

}  // namespace
}  // namespace penstock::test
