// The grid for the terminal, character by character. The expected rows follow from the rules: a label and a
// gap fill the narrowest box, and all other boxes are to scale.
#include "support/lines.h"
#include "view/drawings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace penstock::view {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

//! The grid of one rank with one stage, without title and legend.
std::string row_of(std::vector<schedule::TimedAction> actions, const GridOptions& options = {}) {
  const Drawing drawing = draw_one(make_timeline("mine", 1, 1, {std::move(actions)}));
  return test::lines_of(to_grid(drawing, options)).at(1);
}

TEST(ViewGrid, Shows1F1BAsInPapers) {
  EXPECT_EQ(to_grid(draw(run(schedule::ScheduleKind::OneFOneB, {3, 1, 4}), TimeUnit::Units)),
            "1F1B: 3 ranks, 3 stages, 4 microbatches\n"
            "rank 0 F0 F1 F2 ............B0--- F3 B1--- ...B2--- ...B3---\n"
            "rank 1 ...F0 F1 ......B0--- F2 B1--- F3 B2--- ...B3---\n"
            "rank 2 ......F0 B0--- F1 B1--- F2 B2--- F3 B3---\n"
            "       F forward   B backward\n");
}

TEST(ViewGrid, ColorsShowKindAndNarrowGridFitsTerminal) {
  const Drawing drawing = draw(run(schedule::ScheduleKind::ZBVZeroBubble, {4, 2, 16}), TimeUnit::Units);
  const std::string text = to_grid(drawing, {.color = true, .width = 80});
  EXPECT_THAT(text, HasSubstr("\x1b[38;5;16;48;5;68m"));
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = text.find('m', i);
    } else {
      plain += text[i];
    }
  }
  std::istringstream lines(plain);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 81u) << line;
}

TEST(ViewGrid, DrawsTableSlotBySlot) {
  schedule::Schedule schedule{"mine", schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop), 1, {}};
  schedule.ranks = {{schedule::Action::forward(StageId(0), MicrobatchId(0)), schedule::Action(),
                     schedule::Action::backward(StageId(0), MicrobatchId(0))}};
  EXPECT_THAT(to_grid(draw(schedule)), HasSubstr("rank 0 F0 ...B0\n"));
}

TEST(ViewGrid, DrawsOverlapHalvesSideBySide) {
  const StageId first(0), second(1);
  const MicrobatchId m0(0), m1(1);
  schedule::Schedule schedule{"mine", schedule::Placement::make(1, 2, schedule::PlacementStyle::Loop), 2, {}};
  schedule.ranks = {{schedule::Action::forward(first, m0),
                     schedule::Action::overlap(schedule::Action::forward(first, m1),
                                               schedule::Action::backward(second, m0)),
                     schedule::Action::backward(first, m0)}};
  // A label of three characters and a gap fill half a slot: a slot has 8 columns.
  EXPECT_THAT(to_grid(draw(schedule)), HasSubstr("\nrank 0 0F0---- 0F1 1B0 0B0----\n"));
}

TEST(ViewGrid, ColorsReplaceLetters) {
  schedule::Schedule schedule{"mine", schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop), 1, {}};
  schedule.ranks = {{schedule::Action(), schedule::Action::forward(StageId(0), MicrobatchId(0)),
                     schedule::Action(), schedule::Action(),
                     schedule::Action::backward(StageId(0), MicrobatchId(0))}};
  // Two columns per slot; idle slots are blank, and each box ends with a reset.
  const std::string f = "\x1b[38;5;16;48;5;68m", b = "\x1b[38;5;16;48;5;72m", end = "\x1b[0m";
  EXPECT_EQ(to_grid(draw(schedule), {.color = true}),
            "mine: 1 rank, 1 stage, 1 microbatch\n"
            "rank 0   " +
                f + "0 " + end + "    " + b + "0 " + end + "\n       " + f + " F " + end + " forward   " + b +
                " B " + end + " backward\n");
}

TEST(ViewGrid, NarrowBoxShowsOnlyItsKind) {
  schedule::Schedule schedule{"mine", schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop), 4, {}};
  schedule.ranks.resize(1);
  for (int m = 0; m < 4; ++m)
    schedule.ranks[0].push_back(schedule::Action::forward(StageId(0), MicrobatchId(m)));
  for (int m = 0; m < 4; ++m)
    schedule.ranks[0].push_back(schedule::Action::backward(StageId(0), MicrobatchId(m)));
  // Eight slots in the 8 columns after the name of the rank, then in 16: the label fits without a gap.
  EXPECT_THAT(to_grid(draw(schedule), {.width = 15}), HasSubstr("\nrank 0 FFFFBBBB\n"));
  EXPECT_THAT(to_grid(draw(schedule), {.width = 23}), HasSubstr("\nrank 0 F0F1F2F3B0B1B2B3\n"));
  EXPECT_THAT(to_grid(draw(schedule), {.width = 80}), HasSubstr("\nrank 0 F0 F1 F2 F3 B0 B1 B2 B3\n"));
  // A terminal too narrow for the name still gets 8 columns.
  EXPECT_THAT(to_grid(draw(schedule), {.width = 3}), HasSubstr("\nrank 0 FFFFBBBB\n"));
}

TEST(ViewGrid, SeveralPanelsAreNamedAndShareLegend) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::OneFOneB, {1, 1, 1});
  Drawing drawing = draw(simulation, TimeUnit::Units);
  schedule::Timeline measured = simulation.timeline;
  measured.source = schedule::TimelineSource::Measured;
  add_panel(drawing, measured);
  EXPECT_EQ(to_grid(drawing),
            "1F1B: 1 rank, 1 stage, 1 microbatch\n"
            "\npredicted\n"
            "rank 0 F0 B0---\n"
            "\nmeasured\n"
            "rank 0 F0 B0---\n"
            "       F forward   B backward\n");
}

//! Two ranks with two stages each: rank 0 has stages 0 and 3, rank 1 has stages 1 and 2.
Drawing draw_two_chunks() {
  return draw_one(
      make_timeline("mine", 4, 1,
                    {{timed("0F0", 0, 1), timed("3F0", 3, 4), timed("3B0", 4, 6), timed("0B0", 8, 10)},
                     {timed("1F0", 1, 2), timed("2F0", 2, 3), timed("2I0", 6, 7), timed("1I0", 7, 8),
                      timed("2W0", 8, 9), timed("1W0", 9, 10)}}));
}

TEST(ViewGrid, LabelsShowStageIfRanksHaveSeveral) {
  EXPECT_EQ(to_grid(draw_two_chunks()),
            "mine: 2 ranks, 4 stages, 1 microbatch\n"
            "rank 0 0F0 ........3F0 3B0---- ........0B0----\n"
            "rank 1 ....1F0 2F0 ............2I0 1I0 2W0 1W0\n"
            "       F forward   B backward   I backward: inputs   W backward: weights\n");
}

TEST(ViewGrid, SecondStageOfRankIsLighter) {
  // Color 16 + 36 r + 6 g + b has r, g and b from 0 to 5. A lighter color has one more red and one more
  // green.
  const auto color = [](int r, int g, int b) {
    return "\x1b[38;5;16;48;5;" + std::to_string(16 + 36 * r + 6 * g + b) + "m";
  };
  const std::string f = color(1, 2, 4), b = color(1, 3, 2), i = color(1, 3, 3), w = color(4, 3, 1);
  const std::string f2 = color(2, 3, 4), b2 = color(2, 4, 2), i2 = color(2, 4, 3), w2 = color(5, 4, 1);
  const std::string end = "\x1b[0m";
  // One digit and a gap: two columns per unit.
  EXPECT_THAT(test::lines_of(to_grid(draw_two_chunks(), {.color = true})),
              ElementsAre("mine: 2 ranks, 4 stages, 1 microbatch",
                          "rank 0 " + f + "0 " + end + "    " + f2 + "0 " + end + b2 + "0   " + end + "    " +
                              b + "0   " + end,
                          "rank 1   " + f + "0 " + end + f2 + "0 " + end + "      " + i2 + "0 " + end + i +
                              "0 " + end + w2 + "0 " + end + w + "0 " + end,
                          "       " + f + " F " + end + " forward   " + b + " B " + end + " backward   " + i +
                              " I " + end + " backward: inputs   " + w + " W " + end + " backward: weights"));
}

TEST(ViewGrid, ColoredOverlapHalvesAreSideBySide) {
  const std::string f = "\x1b[38;5;16;48;5;68m", b = "\x1b[38;5;16;48;5;72m", end = "\x1b[0m";
  // A digit and a gap fill half of the overlap: two columns per unit.
  EXPECT_EQ(row_of({timed("(0F1;0B0)OVERLAP_F_B", 1, 3)}, {.color = true}),
            "rank 0   " + f + "1 " + end + b + "0 " + end);
}

TEST(ViewGrid, NarrowGridKeepsProportions) {
  // 18 columns for 18 units: a forward pass has no room for its label, a backward pass has just enough.
  const Drawing drawing = draw(run(schedule::ScheduleKind::OneFOneB, {3, 1, 4}), TimeUnit::Units);
  EXPECT_EQ(to_grid(drawing, {.width = 25}),
            "1F1B: 3 ranks, 3 stages, 4 microbatches\n"
            "rank 0 FFF....B0FB1.B2.B3\n"
            "rank 1 .FF..B0FB1FB2.B3\n"
            "rank 2 ..FB0FB1FB2FB3\n"
            "       F forward   B backward\n");
}

TEST(ViewGrid, NamesOfRanksAreAligned) {
  const auto rows = [](int ranks) {
    schedule::Schedule schedule{
        "mine", schedule::Placement::make(ranks, ranks, schedule::PlacementStyle::Loop), 1, {}};
    for (int r = 0; r < ranks; ++r)
      schedule.ranks.push_back({schedule::Action::forward(StageId(r), MicrobatchId(0))});
    std::vector<std::string> lines = test::lines_of(to_grid(draw(schedule)));
    lines.erase(lines.begin());
    return lines;
  };
  EXPECT_THAT(rows(10),
              ElementsAre("rank 0 F0", "rank 1 F0", "rank 2 F0", "rank 3 F0", "rank 4 F0", "rank 5 F0",
                          "rank 6 F0", "rank 7 F0", "rank 8 F0", "rank 9 F0", "       F forward"));
  EXPECT_THAT(rows(11), ElementsAre("rank 0  F0", "rank 1  F0", "rank 2  F0", "rank 3  F0", "rank 4  F0",
                                    "rank 5  F0", "rank 6  F0", "rank 7  F0", "rank 8  F0", "rank 9  F0",
                                    "rank 10 F0", "        F forward"));
}

TEST(ViewGrid, NarrowestLabelSetsScale) {
  EXPECT_EQ(row_of({timed("0F0", 0, 10), timed("0B0", 10, 30)}), "rank 0 F0 B0---");    // long boxes
  EXPECT_EQ(row_of({timed("0F0", 0, 0.25), timed("0B0", 0.25, 0.5)}), "rank 0 F0 B0");  // a short step
  EXPECT_EQ(row_of({timed("0B0", 0, 2), timed("0F1", 2, 3)}), "rank 0 B0--- F1");       // not the first box
  EXPECT_EQ(row_of({timed("0F0", 0, 1), timed("0F100", 1, 2)}), "rank 0 F0-- F100");  // not the shortest box
}

TEST(ViewGrid, BoxOfZeroLengthHasOneColumn) {
  EXPECT_EQ(row_of({timed("0F0", 0, 2), timed("0B0", 2, 2)}), "rank 0 F0 B");
  EXPECT_EQ(row_of({timed("0F0", 0, 0), timed("0B0", 1, 3)}), "rank 0 F.B0");
}

TEST(ViewGrid, LongStepsHave4000Columns) {
  // The label of F0 needs three columns per unit, but there is only half a column.
  EXPECT_EQ(row_of({timed("0F0", 0, 1), timed("0B0", 1, 8000)}), "rank 0 FB0" + std::string(3996, '-'));
}

TEST(ViewGrid, RanksWithoutActionsHaveEmptyRows) {
  EXPECT_EQ(to_grid(draw_one(make_timeline("mine", 2, 1, {{}, {}}))),
            "mine: 2 ranks, 2 stages, 1 microbatch\nrank 0\nrank 1\n\n");
  EXPECT_EQ(to_grid(draw_one(make_timeline("mine", 2, 1, {{timed("0F0", 0, 1)}, {}}))),
            "mine: 2 ranks, 2 stages, 1 microbatch\nrank 0 F0\nrank 1\n       F forward\n");
}

}  // namespace
}  // namespace penstock::view
