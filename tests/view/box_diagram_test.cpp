// The diagram of a split model, compared with the approved figure of an encoder and decoder in four stages.
// tests/pipe/diagram_test.cpp draws the same figure from the model.
#include "view/box_diagram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace penstock::view {
namespace {

using ::testing::HasSubstr;

BoxDiagram encoder_and_decoder() {
  BoxDiagram diagram;
  diagram.source_heading = "inputs";
  diagram.source_line = "2 from the user";
  diagram.boxes = {{"stage 0",
                    "encoder … encoder.block.0.layer.1",
                    {"78 operators", "2.91 KiB of parameters", "18.5 kFLOP, 11.4 KiB kept"}},
                   {"stage 1",
                    "encoder … decoder.block.0.layer.0",
                    {"91 operators", "3.47 KiB of parameters", "22 kFLOP, 11.6 KiB kept"}},
                   {"stage 2",
                    "decoder … decoder.block.1.layer.0",
                    {"103 operators", "2.84 KiB of parameters", "17.1 kFLOP, 9.41 KiB kept"}},
                   {"stage 3",
                    "decoder … lm_head",
                    {"85 operators", "3.44 KiB of parameters", "20.5 kFLOP, 8.89 KiB kept"}}};
  diagram.arrows = {
      {-1, 0, "", "input_ids", "int64[2, 6]", "input_ids int64[2, 6]"},
      {-1, 1, "decoder_input_ids int64[2, 4]", "", "", "decoder_input_ids int64[2, 4]"},
      {0, 1, "", "2 values", "672 B", "add_8 float32[2, 6, 8]\nunsqueeze_14 float32[1, 2, 6, 6]"},
      {1, 2, "", "5 values", "1.38 KiB",
       "transpose_8 float32[2, 2, 4, 4]\ntranspose_9 float32[2, 2, 4, 4]\ntranspose_10 float32[2, 2, 4, 4]\n"
       "to_8 float32[2, 4, 8]\ndropout_7 float32[2, 6, 8]"},
      {1, 3, "dropout_7 float32[2, 6, 8]", "", "", "dropout_7 float32[2, 6, 8]"},
      {2, 3, "", "4 values", "896 B",
       "mul_20 float32[2, 4, 8]\nunsqueeze_41 float32[1, 2, 4, 4]\ntranspose_16 float32[2, 2, 4, 4]\n"
       "to_13 float32[2, 4, 8]"}};
  const std::string names =
      "shared.weight = encoder.embed_tokens.weight = decoder.embed_tokens.weight = lm_head.weight";
  diagram.ties = {{{0, 1, 3}, names, names + ": held by both stages"}};
  return diagram;
}

TEST(ViewBoxDiagram, MatchesApprovedFigure) {
  std::ifstream in(PENSTOCK_SOURCE_DIR "/tests/view/golden/stages.svg", std::ios::binary);
  std::ostringstream expected;
  expected << in.rdbuf();
  EXPECT_EQ(to_svg(encoder_and_decoder()), expected.str());
}

TEST(ViewBoxDiagram, EscapesAndShortensText) {
  BoxDiagram diagram;
  diagram.boxes = {{"<a>", "", {}}, {"b & c", "", {}}};
  diagram.arrows = {{0, 1, "", std::string(60, 'x'), "", "\"t\""}};
  const std::string svg = to_svg(diagram);
  EXPECT_THAT(svg, HasSubstr(">&lt;a&gt;<"));
  EXPECT_THAT(svg, HasSubstr(">b &amp; c<"));
  EXPECT_THAT(svg, HasSubstr(">" + std::string(24, 'x') + "…<"));  // 150 pixels
}

// The space below the row is as high as the arc of the longest tie.
TEST(ViewBoxDiagram, MakesRoomForTies) {
  const auto height_of = [](std::vector<int> tied) {
    BoxDiagram diagram;
    diagram.boxes.resize(4);
    if (!tied.empty()) diagram.ties = {{std::move(tied), "w", "w"}};
    const std::string svg = to_svg(diagram);
    const std::size_t at = svg.find(" height=\"") + 9;
    return std::stoi(svg.substr(at));
  };
  EXPECT_EQ(height_of({0, 1}) - height_of({}), 24 + 26);
  EXPECT_EQ(height_of({0, 3}) - height_of({0, 1}), 2 * 26);
}

}  // namespace
}  // namespace penstock::view
