// The figure of a split model, compared with the approved figure that tests/view/box_diagram_test.cpp draws.
#include "support/tensor_file.h"

#include <penstock/pipe/pipe.h>

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace penstock::pipe {
namespace {

TEST(PipeDiagram, OfEncoderAndDecoderMatchesApprovedFigure) {
  std::ifstream in(PENSTOCK_SOURCE_DIR "/tests/view/golden/stages.svg", std::ios::binary);
  std::ostringstream expected;
  expected << in.rdbuf();
  EXPECT_EQ(load_pt2(test::archive("t5.pt2"), Balanced{4}).svg(), expected.str());
}

}  // namespace
}  // namespace penstock::pipe
