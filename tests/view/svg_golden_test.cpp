// The layout of the figure, compared with approved figures in golden/. A change of layout changes them: run
//   PENSTOCK_UPDATE_GOLDEN=1 build/release/tests/view/view_svg_test --gtest_filter='ViewSvgGolden.*'
// and look at the new figures in a browser before you commit them.
#include "view/drawings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace penstock::view {
namespace {

void expect_golden(const Drawing& drawing, const std::string& name) {
  const std::string path = std::string(PENSTOCK_SOURCE_DIR) + "/tests/view/golden/" + name + ".svg";
  const std::string svg = to_svg(drawing);
  if (std::getenv("PENSTOCK_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << svg;
  std::ifstream in(path, std::ios::binary);
  ASSERT_TRUE(in) << path << " is missing; PENSTOCK_UPDATE_GOLDEN=1 writes it";
  std::istringstream actual(svg);
  std::string expected_line, line;
  for (int number = 1; std::getline(in, expected_line); ++number) {
    ASSERT_TRUE(std::getline(actual, line)) << path << ":" << number << ": the figure ends here";
    ASSERT_EQ(line, expected_line) << path << ":" << number;
  }
  EXPECT_FALSE(std::getline(actual, line)) << path << " ends before: " << line;
}

//! Halves of an overlap, lanes of communication, boxes of zero length, six legend entries. The narrowest box,
//! 0.3 units, sets the scale.
TEST(ViewSvgGolden, AllKinds) {
  expect_golden(draw_all_kinds(), "all_kinds");
}

//! Two panels of different length on one axis in seconds. Only the second panel has communication.
TEST(ViewSvgGolden, PredictedAndMeasured) {
  Drawing drawing = draw_one(make_timeline("1F1B", 2, 2,
                                           {{timed("0F0", 0, 0.05), timed("0F1", 0.05, 0.1),
                                             timed("0B0", 0.2, 0.3), timed("0B1", 0.35, 0.45)},
                                            {timed("1F0", 0.05, 0.1), timed("1B0", 0.1, 0.2),
                                             timed("1F1", 0.2, 0.25), timed("1B1", 0.25, 0.35)}}),
                             TimeUnit::Seconds);
  schedule::Timeline measured =
      make_timeline("1F1B", 2, 2,
                    {{timed("0F0", 0, 0.06), timed("0SEND_F0", 0.06, 0.065), timed("0F1", 0.06, 0.12),
                      timed("0SEND_F1", 0.12, 0.125), timed("0RECV_B0", 0.12, 0.22), timed("0B0", 0.22, 0.32),
                      timed("0RECV_B1", 0.32, 0.4), timed("0B1", 0.4, 0.48)},
                     {timed("1RECV_F0", 0, 0.065), timed("1F0", 0.065, 0.12), timed("1RECV_F1", 0.065, 0.125),
                      timed("1B0", 0.12, 0.21), timed("1SEND_B0", 0.21, 0.22), timed("1F1", 0.21, 0.28),
                      timed("1B1", 0.28, 0.39), timed("1SEND_B1", 0.39, 0.4)}});
  measured.source = schedule::TimelineSource::Measured;
  add_panel(drawing, measured);
  expect_golden(drawing, "predicted_and_measured");
}

//! A step of the largest width, 1,500 pixels for 1,500 units. Boxes of more than 4 pixels have a gap; boxes
//! of 10 or more show one digit, those of 17 or more two. Later stages of the rank are lighter. The
//! last tick is at the end of the axis.
TEST(ViewSvgGolden, NarrowBoxes) {
  expect_golden(
      draw_one(make_timeline(
          "narrow boxes", 5, 12,
          {{timed("0F0", 0, 3.5), timed("0F1", 10, 14), timed("0F2", 20, 24.5), timed("0F3", 30, 39.5),
            timed("0F4", 45, 55), timed("0F10", 60, 76.5), timed("0F11", 80, 97), timed("1F0", 100, 140),
            timed("2F0", 200, 240), timed("3F0", 300, 340), timed("4F0", 400, 440), timed("4B0", 500, 1000),
            timed("0B0", 1000, 1500)}})),
      "narrow_boxes");
}

}  // namespace
}  // namespace penstock::view
