// `penstock inspect` through the real binary.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace penstock::pipe {
namespace {

using testing::HasSubstr;

const std::string kModel = PENSTOCK_SOURCE_DIR "/tests/graph/archives/gpt.pt2";

TEST(ToolInspect, PrintsStagesInputsAndTiedWeights) {
  const auto shown = test::run_program({PENSTOCK_TOOL, "inspect", kModel, "--split", "blocks.1=beginning"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("stage 1  %add_2 float32[\"s52\"=4, 5, 8]  from stage 0, output 0"));
  EXPECT_THAT(shown.out, HasSubstr("parameter token.weight = head.weight  in stages 0, 1"));
  EXPECT_THAT(shown.out, HasSubstr("outputs  output.logits, output.hidden.0"));
  EXPECT_THAT(shown.out, HasSubstr("modules: token, place, blocks.0\n"));
  EXPECT_THAT(shown.out, HasSubstr("operators: linear x4, "));
  EXPECT_THAT(shown.out, HasSubstr("stage 0  %add_2 float32[\"s52\"=4, 5, 8]  to stage 1\n"));
  EXPECT_THAT(shown.out, HasSubstr("to the user, output.logits\n"));
  const auto json = test::run_program({PENSTOCK_TOOL, "inspect", kModel, "--stages", "3", "--json"});
  EXPECT_THAT(json.out, HasSubstr("\"stages_count\":3"));
  EXPECT_THAT(test::run_program({PENSTOCK_TOOL, "inspect", kModel, "--as", "graphviz"}).out,
              HasSubstr("stage0 -> stage1"));
}

TEST(ToolInspect, DrawsStagesAndTransfers) {
  const auto drawn = test::run_program({PENSTOCK_TOOL, "inspect", kModel, "--stages", "4", "--as", "svg"});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_THAT(drawn.out, testing::AllOf(testing::StartsWith("<svg "), testing::EndsWith("</svg>\n")));
  for (const char* text :
       {">stage 0<", ">stage 3<", ">inputs<", "token.weight = head.weight", "of parameters"})
    EXPECT_THAT(drawn.out, HasSubstr(text));
  // Every opened element is closed.
  int open = 0;
  for (std::size_t i = 0; i + 1 < drawn.out.size(); ++i) {
    if (drawn.out[i] == '<') open += drawn.out[i + 1] == '/' ? -1 : 1;
    if (drawn.out[i] == '/' && drawn.out[i + 1] == '>') --open;
    EXPECT_GE(open, 0);
  }
  EXPECT_EQ(open, 0);
}

TEST(ToolInspect, ProfilesOperators) {
  const std::string mlp = PENSTOCK_SOURCE_DIR "/tests/train/archives/mlp";
  const std::vector<std::string> words{PENSTOCK_TOOL, "inspect", mlp + ".pt2",        "--as",
                                       "profile",     "--input", mlp + ".safetensors"};
  const auto text = test::run_program(words);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, testing::ContainsRegex("linear .* @ "));
  std::vector<std::string> as_json = words;
  as_json.push_back("--json");
  const auto profile = nlohmann::json::parse(test::run_program(as_json).out);
  double seconds = 0, flops = 0;
  for (const auto& node : profile.at("nodes")) {
    seconds += node.at("seconds").get<double>();
    flops += node.at("flops").get<double>();
  }
  EXPECT_GT(seconds, 0);
  EXPECT_DOUBLE_EQ(seconds, profile.at("seconds").get<double>());
  EXPECT_THAT(text.out, HasSubstr("all " + std::to_string(profile.at("nodes").size()) + " nodes: "));
  const auto stages = nlohmann::json::parse(
      test::run_program({PENSTOCK_TOOL, "inspect", mlp + ".pt2", "--stages", "1", "--json"}).out);
  EXPECT_DOUBLE_EQ(flops, stages.at("stages").at(0).at("flops").get<double>());
}

TEST(ToolInspect, ReportsErrors) {
  const auto misspelt = test::run_program({PENSTOCK_TOOL, "inspect", kModel, "--split", "block.1=beginning"});
  EXPECT_EQ(misspelt.code, 2);
  EXPECT_THAT(misspelt.err, HasSubstr("did you mean blocks.1?"));
  const auto no_archive = test::run_program({PENSTOCK_TOOL, "inspect", PENSTOCK_SOURCE_DIR "/README.md"});
  EXPECT_EQ(no_archive.code, 2);
  EXPECT_THAT(no_archive.err, testing::AllOf(HasSubstr("no zip directory"), HasSubstr("torch.export.save")));
  const auto folder =
      test::run_program({PENSTOCK_TOOL, "inspect", PENSTOCK_SOURCE_DIR "/tests/train/archives"});
  EXPECT_EQ(folder.code, 2);
  EXPECT_THAT(folder.err, testing::AllOf(HasSubstr("is a directory"), HasSubstr("ends in .pt2")));
}

}  // namespace
}  // namespace penstock::pipe
