// `penstock eval`, `costs` and `plan --model` through the real binary, compared with the unsplit model in
// this process.
#include "support/program.h"
#include "support/python_reference.h"

#include <penstock/checkpoint/safetensors.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>

namespace penstock::pipe {
namespace {

using test::archive;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

std::string file_of(const std::string& name) {
  static const test::TempDir dir;
  return dir / name;
}

test::Outcome eval(const std::string& model, const Tensors& inputs,
                   const std::vector<std::string>& more = {}) {
  checkpoint::save_safetensors(file_of("in.safetensors"), inputs);
  std::filesystem::remove(file_of("out.safetensors"));
  std::vector<std::string> words{PENSTOCK_TOOL,
                                 "eval",
                                 model,
                                 "--input",
                                 file_of("in.safetensors"),
                                 "--output",
                                 file_of("out.safetensors")};
  words.insert(words.end(), more.begin(), more.end());
  return test::run_program(words);
}

//! The outputs of the unsplit model for the inputs of `run`. (tests/graph shows that they equal Python's
//! bitwise.)
Tensors unsplit_outputs(const std::string& name, const std::string& run) {
  const graph::Pt2Archive file(archive(name + ".pt2"));
  graph::GraphModule module(file.graph(), file.load(file.graph().slots));
  module.train(false);
  const Tensors given = test::read_tensors(archive(name + ".safetensors"));
  const auto values = module.run(test::inputs_of(file.graph(), given, run + "."));
  const auto paths = file.graph().output_paths();
  Tensors outputs;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensor()) outputs[paths[i]] = values[i].toTensor().detach();
  }
  return outputs;
}

//! Runs `penstock eval` and compares its outputs with those of the unsplit model.
void expect_unsplit_outputs(const std::string& name, const Tensors& inputs, const std::string& run,
                            const std::vector<std::string>& more) {
  SCOPED_TRACE(name + " " + ::testing::PrintToString(more));
  const auto result = eval(archive(name + ".pt2"), inputs, more);
  ASSERT_EQ(result.code, 0) << result.err;
  const Tensors outputs = checkpoint::load_safetensors(file_of("out.safetensors"));
  const Tensors expected = unsplit_outputs(name, run);
  for (const auto& [path, tensor] : expected) {
    const auto found = outputs.find(path);
    ASSERT_NE(found, outputs.end()) << path;
    EXPECT_TRUE(at::allclose(found->second, tensor, 1e-5, 1e-6)) << path;
  }
  EXPECT_EQ(expected.size(), outputs.size());
}

TEST(ToolEval, MatchesUnsplitModelOverAnyNumberOfRanks) {
  const Tensors mlp = test::read_tensors(archive("mlp.safetensors"));
  const Tensors seven{{"x", mlp.at("r1.in.0")}};  // 7 rows: microbatches of 3, 2 and 2
  expect_unsplit_outputs("mlp", seven, "r1", {});
  expect_unsplit_outputs("mlp", seven, "r1", {"--ranks", "2", "--microbatches", "3"});
  expect_unsplit_outputs("mlp", seven, "r1",
                         {"--ranks", "2", "--schedule", "Interleaved1F1B", "--stages-per-rank", "2",
                          "--microbatches", "2", "--balance", "time"});
  expect_unsplit_outputs("mlp", seven, "r1", {"--pp", "3", "--split", "layers.0=end,layers.2=beginning"});
  const Tensors mixed = test::read_tensors(archive("mixed.safetensors"));
  expect_unsplit_outputs("mixed", {{"x", mixed.at("r0.in.0")}, {"other_u", mixed.at("r0.in.2")}}, "r0", {});
}

TEST(ToolEval, SplitsForFixedBatchSize) {
  const Tensors lstm = test::read_tensors(archive("lstm.safetensors"));
  const at::Tensor both = at::cat({lstm.at("r0.in.0"), lstm.at("r1.in.0")});  // exported for 2 rows
  ASSERT_EQ(eval(archive("lstm.pt2"), {{"x", both}}, {"--ranks", "2"}).code, 0);
  const Tensors outputs = checkpoint::load_safetensors(file_of("out.safetensors"));
  EXPECT_TRUE(at::allclose(
      outputs.at("output.0"),
      at::cat({unsplit_outputs("lstm", "r0").at("output.0"), unsplit_outputs("lstm", "r1").at("output.0")}),
      1e-5, 1e-6));
}

TEST(ToolEval, LossIsMeanOverAllExamples) {
  const std::string model = PENSTOCK_SOURCE_DIR "/examples/exported/gpt.pt2";
  const Tensors inputs{{"tokens", at::arange(40, at::kLong).view({5, 8}) % 17},
                       {"targets", at::arange(3, 43, at::kLong).view({5, 8}) % 17}};
  ASSERT_EQ(eval(model, inputs).code, 0);
  const Tensors unsplit = checkpoint::load_safetensors(file_of("out.safetensors"));
  const auto result = eval(model, inputs, {"--ranks", "2", "--microbatches", "3", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Tensors split = checkpoint::load_safetensors(file_of("out.safetensors"));
  EXPECT_EQ(split.at("output.loss").dim(), 0);
  for (const auto& [name, tensor] : unsplit)
    EXPECT_TRUE(at::allclose(split.at(name), tensor, 1e-5, 1e-6)) << name;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["examples"], 5);
  EXPECT_EQ(json["outputs"]["output.logits"]["shape"], (std::vector<int>{5, 8, 17}));
}

TEST(ToolEval, RunsOverPipelineDataAndTensorRanks) {
  const std::string model = PENSTOCK_SOURCE_DIR "/examples/exported/gpt.pt2";
  const Tensors inputs{{"tokens", at::arange(56, at::kLong).view({7, 8}) % 17},
                       {"targets", at::arange(3, 59, at::kLong).view({7, 8}) % 17}};
  ASSERT_EQ(eval(model, inputs).code, 0);
  const Tensors unsplit = checkpoint::load_safetensors(file_of("out.safetensors"));
  using Words = std::vector<std::string>;
  for (const Words& over : {Words{"--dp", "3"}, Words{"--tp", "2"},
                            Words{"--ranks", "8", "--dp", "2", "--tp", "2", "--microbatches", "2"}}) {
    SCOPED_TRACE(::testing::PrintToString(over));
    const auto result = eval(model, inputs, over);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("7 examples in"));
    const Tensors split = checkpoint::load_safetensors(file_of("out.safetensors"));
    ASSERT_EQ(split.size(), unsplit.size());
    for (const auto& [name, tensor] : unsplit)
      EXPECT_TRUE(at::allclose(split.at(name), tensor, 1e-5, 1e-6)) << name;
  }
  // A model with a fixed batch size gives each replica full batches: 3, 2 and 1 of them.
  const at::Tensor x = at::arange(90, at::kFloat).view({6, 5, 3}) / 90;
  ASSERT_EQ(eval(archive("lstm.pt2"), {{"x", x}}).code, 0);
  const Tensors one = checkpoint::load_safetensors(file_of("out.safetensors"));
  ASSERT_EQ(eval(archive("lstm.pt2"), {{"x", x}}, {"--dp", "2"}).code, 0);
  for (const auto& [name, tensor] : checkpoint::load_safetensors(file_of("out.safetensors")))
    EXPECT_TRUE(at::equal(tensor, one.at(name))) << name;
}

TEST(ToolEval, AcceptsIntegersOfAnyWidth) {
  const std::string model = PENSTOCK_SOURCE_DIR "/examples/exported/gpt.pt2";
  Tensors inputs{{"tokens", at::arange(40, at::kLong).view({5, 8}) % 17},
                 {"targets", at::arange(3, 43, at::kLong).view({5, 8}) % 17}};
  ASSERT_EQ(eval(model, inputs).code, 0);
  const Tensors expected = checkpoint::load_safetensors(file_of("out.safetensors"));
  inputs["tokens"] = inputs["tokens"].to(at::kInt);
  inputs["targets"] = inputs["targets"].to(at::kByte);
  const auto result = eval(model, inputs, {"--ranks", "2"});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const auto& [name, tensor] : checkpoint::load_safetensors(file_of("out.safetensors")))
    EXPECT_TRUE(at::allclose(tensor, expected.at(name), 1e-5, 1e-6)) << name;
}

TEST(ToolEval, ReportsErrors) {
  const at::Tensor x = at::zeros({4, 6});
  const std::string mlp = archive("mlp.pt2"), lstm = archive("lstm.pt2");
  const auto error_output = [](const test::Outcome& outcome, int code) {
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_FALSE(std::filesystem::exists(file_of("out.safetensors")));
    return outcome.err;
  };
  EXPECT_THAT(error_output(eval(mlp, {{"y", x}}), 2), HasSubstr("no tensor for the model's input x"));
  EXPECT_THAT(error_output(eval(mlp, {{"x", x.to(at::kDouble)}}), 2),
              HasSubstr("is float64, expected float32"));
  EXPECT_THAT(error_output(eval(mlp, {{"x", at::zeros({4, 5})}}), 2), HasSubstr("dim 1"));
  EXPECT_THAT(error_output(eval(mlp, {{"x", at::zeros({0, 6})}}), 2), HasSubstr("no examples"));
  EXPECT_THAT(error_output(eval(mlp, {{"x", x}}, {"--microbatches", "5"}), 2), HasSubstr("4 examples"));
  EXPECT_THAT(error_output(eval(mlp, {{"x", x}}, {"--stages", "100"}), 2),
              HasSubstr("too few for 100 stages"));
  EXPECT_THAT(error_output(eval(mlp, {{"x", x}}, {"--ranks", "2", "--stages", "3"}), 2),
              HasSubstr("3 stages cannot be divided evenly among 2 ranks"));
  EXPECT_THAT(error_output(eval(mlp, {{"x", x}}, {"--schedule", "1F2B"}), 2), HasSubstr("1F1B"));
  EXPECT_THAT(error_output(eval(lstm, {{"x", at::zeros({4, 5, 3})}}, {"--tp", "2"}), 2),
              HasSubstr("that 2 tensor-parallel ranks could share"));
  EXPECT_THAT(error_output(eval(mlp, {{"x", x}}, {"--dp", "5"}), 2),
              HasSubstr("4 examples cannot be divided among 5 data-parallel ranks"));
  EXPECT_THAT(error_output(eval(lstm, {{"x", at::zeros({6, 5, 3})}}, {"--dp", "4"}), 2),
              HasSubstr("in batches of 2 cannot be divided among 4"));
  EXPECT_THAT(error_output(eval(mlp, {{"x", x}}, {"--ranks", "3", "--dp", "2"}), 2),
              HasSubstr("3 ranks are not a multiple of --dp 2 x --tp 1"));
  EXPECT_THAT(error_output(eval(mlp, {{"x", x}}, {"--ranks", "0"}), 2),
              HasSubstr("--ranks must be between 1 and 65535, not 0"));
  EXPECT_THAT(error_output(eval(lstm, {{"x", at::zeros({3, 5, 3})}}), 2), HasSubstr("fixed batch of 2"));
  EXPECT_THAT(error_output(eval(lstm, {{"x", at::zeros({4, 5, 3})}}, {"--microbatches", "4"}), 2),
              HasSubstr("fixed batch of 2"));
  EXPECT_THAT(error_output(eval(PENSTOCK_SOURCE_DIR "/README.md", {{"x", x}}), 2),
              HasSubstr("no zip directory"));
  const auto nowhere = test::run_program(
      {PENSTOCK_TOOL, "eval", mlp, "--input", file_of("in.safetensors"), "--output", "/no/y.safetensors"});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("there is no directory '/no'"));
  const auto other_name = test::run_program(
      {PENSTOCK_TOOL, "eval", mlp, "--input", file_of("in.safetensors"), "--output", file_of("y.pt2")});
  EXPECT_EQ(other_name.code, 2);
  EXPECT_NE(other_name.err.find("FILE.safetensors"), std::string::npos) << other_name.err;
  const auto onto_itself =
      test::run_program({PENSTOCK_TOOL, "eval", mlp, "--input", file_of("in.safetensors"), "--output",
                         file_of("in.safetensors")});
  EXPECT_EQ(onto_itself.code, 2);
  EXPECT_NE(onto_itself.err.find("would overwrite an input file"), std::string::npos) << onto_itself.err;
  const auto no_tensors =
      test::run_program({PENSTOCK_TOOL, "eval", mlp, "--input", mlp, "--output", "y.safetensors"});
  EXPECT_EQ(no_tensors.code, 2) << no_tensors.err;
}

TEST(ToolPlanModel, PlansExportedModelByItsCosts) {
  const std::string model = archive("gpt2.pt2");
  const auto costs = test::run_program({PENSTOCK_TOOL, "costs", model, "--flops", "1e9", "--json"});
  ASSERT_EQ(costs.code, 0) << costs.err;
  const auto inspected =
      nlohmann::json::parse(test::run_program({PENSTOCK_TOOL, "inspect", model, "--json"}).out);
  double seconds = 0, bytes = 0;
  const auto parsed = nlohmann::json::parse(costs.out);
  for (const auto& layer : parsed["layers"]) {
    seconds += layer["forward"].get<double>();
    bytes += layer["parameter_bytes"].get<double>();
  }
  EXPECT_NEAR(seconds * 1e9 / inspected["stages"][0]["flops"].get<double>(), 1, 1e-3);
  EXPECT_EQ(bytes, inspected["stages"][0]["parameter_bytes"].get<double>());
  const auto plan = test::run_program({PENSTOCK_TOOL, "plan", "--ranks", "2", "--microbatches", "4",
                                       "--model", model, "--schedules", "1F1B,GPipe", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const auto best = nlohmann::json::parse(plan.out)[0];
  EXPECT_EQ(best["verdict"], "best");
  EXPECT_GE(best["first_layer"].size(), 3U);
  const auto shown = test::run_program({PENSTOCK_TOOL, "plan", "--ranks", "2", "--microbatches", "4",
                                        "--model", model, "--schedules", "1F1B"});
  EXPECT_THAT(shown.out, HasSubstr("stage 1 on rank 1: transformer."));
  const auto missing =
      test::run_program({PENSTOCK_TOOL, "plan", "--ranks", "2", "--microbatches", "4", "--model", "no.pt2"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("no.pt2"));
  EXPECT_EQ(
      test::run_program({PENSTOCK_TOOL, "plan", "--ranks", "2", "--microbatches", "4", "--flops", "1e9"})
          .code,
      2);
}

}  // namespace
}  // namespace penstock::pipe
