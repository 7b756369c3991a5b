// Drawings, independent of a renderer: titles, panels, summaries, lanes and the critical path.
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/view/render.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::view {
namespace {

using testing::ElementsAre;
using testing::Pair;

schedule::Timeline timeline_of(std::vector<schedule::TimedAction> actions) {
  schedule::Timeline timeline;
  timeline.placement = schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop);
  timeline.microbatches = 1;
  timeline.ranks = {std::move(actions)};
  return timeline;
}

const StageId kStage0(0);
const MicrobatchId kBatch0(0);

TEST(ViewDrawing, TitlesUseSingularAndPlural) {
  const auto title = [](const char* name, int ranks, int stages_per_rank, int microbatches) {
    schedule::Schedule schedule{
        name,
        schedule::Placement::make(ranks, ranks * stages_per_rank, schedule::PlacementStyle::Loop),
        microbatches,
        {}};
    schedule.ranks.resize(static_cast<std::size_t>(ranks));
    return draw(schedule).title;
  };
  EXPECT_EQ(title("", 1, 1, 1), "Schedule: 1 rank, 1 stage, 1 microbatch");
  EXPECT_EQ(title("mine", 2, 2, 3), "mine: 2 ranks, 4 stages, 3 microbatches");
}

TEST(ViewDrawing, TableHasOneUnitPerSlot) {
  schedule::Schedule schedule{"mine", schedule::Placement::make(2, 4, schedule::PlacementStyle::V), 1, {}};
  schedule.ranks = {{schedule::Action::forward(kStage0, kBatch0), schedule::Action(),
                     schedule::Action::backward(kStage0, kBatch0)},
                    {schedule::Action()}};
  schedule.ranks[0].push_back(schedule::Action::forward(kStage0, kBatch0));
  schedule.ranks[0].pop_back();  // remains in memory, after the end of the list
  const Drawing drawing = draw(schedule);
  const Panel& panel = drawing.panels.at(0);
  EXPECT_EQ(panel.name, "order");
  EXPECT_EQ(panel.end, 3);
  EXPECT_EQ(drawing.time_unit, TimeUnit::Units);
  EXPECT_THAT(panel.summary, ElementsAre(Pair("slots", "3")));
  EXPECT_THAT(drawing.chunk_of_stage, ElementsAre(0, 0, 1, 1));
  ASSERT_EQ(panel.compute[0].size(), 2u);
  EXPECT_EQ(panel.compute[0][1].start, 2);
  EXPECT_EQ(panel.compute[0][1].end, 3);
  EXPECT_TRUE(panel.compute[1].empty());
}

TEST(ViewDrawing, SummarizesBothBubblesAndPeak) {
  // F = 1, B = 2: 9 units, one third of them idle, half of that within the spans of the ranks (report_test).
  const plan::Simulation simulation =
      simulate(make_program(schedule::make_schedule("1F1B", {2, 1, 2}), schedule::SendMode::Buffered),
               plan::Costs::uniform(2));
  EXPECT_THAT(
      draw(simulation, TimeUnit::Units).panels[0].summary,
      ElementsAre(Pair("step", "9"), Pair("idle in the step", "33.3%"),
                  Pair("idle inside the ranks' own spans", "16.7%"), Pair("peak memory", "2 activations")));
  EXPECT_THAT(draw(simulation, TimeUnit::Seconds).panels[0].summary,
              ElementsAre(Pair("step", "9.00 s"), Pair("idle in the step", "33.3%"),
                          Pair("idle inside the ranks' own spans", "16.7%"), Pair("peak memory", "2 B")));
  schedule::Timeline bare = timeline_of({{schedule::Action::forward(kStage0, kBatch0), 0, 2}});
  EXPECT_EQ(draw(std::span(&bare, 1), TimeUnit::Units).panels[0].summary.size(),
            3u);  // no memory was recorded
  bare.memory = {{{0, 1}}};
  EXPECT_EQ(draw(std::span(&bare, 1), TimeUnit::Units).panels[0].summary.back().second, "1 activation");
  bare.memory = {{{0, 0}}};
  EXPECT_EQ(draw(std::span(&bare, 1), TimeUnit::Units).panels[0].summary.back().second, "0 activations");
}

TEST(ViewDrawing, DrawsCommunicationOnlyIfItTakesTime) {
  const schedule::Action send = schedule::Action::send_forward(kStage0, kBatch0, StageId(1)),
                         unshard = schedule::Action::unshard(kStage0);
  schedule::Timeline free = timeline_of({{unshard, 0, 0},
                                         {schedule::Action::forward(kStage0, kBatch0), 0, 2},
                                         {send, 2, 2},
                                         {schedule::Action(), 2, 2}});
  EXPECT_TRUE(draw(std::span(&free, 1), TimeUnit::Units).panels[0].communication.empty());
  // If communication takes time, a transfer of zero length is drawn for its arrow; a stage action of zero
  // length is not.
  schedule::Timeline some = timeline_of({{unshard, 0, 0},
                                         {schedule::Action::reduce_grad(kStage0), 0, 1},
                                         {schedule::Action::forward(kStage0, kBatch0), 0, 2},
                                         {send, 2, 2}});
  const Panel panel = draw(std::span(&some, 1), TimeUnit::Units).panels[0];
  ASSERT_EQ(panel.communication.size(), 1u);
  ASSERT_EQ(panel.communication[0].size(), 2u);
  EXPECT_EQ(panel.communication[0][0].action, schedule::Action::reduce_grad(kStage0));
  EXPECT_EQ(panel.communication[0][1].action, send);
  EXPECT_EQ(panel.compute[0].size(), 1u);
}

TEST(ViewDrawing, BoxesOfLaneDoNotOverlapUntilLanesAreFull) {
  std::vector<schedule::TimedAction> actions;
  const auto send = [](int m) {
    return schedule::Action::send_forward(kStage0, MicrobatchId(m), StageId(1));
  };
  for (int m = 0; m < 6; ++m) actions.push_back({send(m), static_cast<double>(m), 10});
  actions.push_back({send(6), 10, 11});
  const schedule::Timeline timeline = timeline_of(actions);
  std::vector<int> lanes;
  const Drawing drawing = draw(std::span(&timeline, 1), TimeUnit::Units);
  for (const ActionBox& box : drawing.panels[0].communication[0]) lanes.push_back(box.lane);
  EXPECT_THAT(lanes, ElementsAre(0, 1, 2, 3, 3, 3, 0));
}

TEST(ViewDrawing, ShortTransfersShareLane) {
  const auto send = [](int m) {
    return schedule::Action::send_forward(kStage0, MicrobatchId(m), StageId(1));
  };
  const schedule::Timeline timeline =
      timeline_of({{send(0), 0, 0.25}, {send(1), 0.25, 0.5}, {send(2), 0.375, 0.5}, {send(3), 0.5, 0.75}});
  const Drawing drawing = draw(std::span(&timeline, 1), TimeUnit::Units);
  std::vector<int> lanes;
  for (const ActionBox& box : drawing.panels[0].communication[0]) lanes.push_back(box.lane);
  EXPECT_THAT(lanes, ElementsAre(0, 0, 1, 0));
}

TEST(ViewDrawing, MarksExactlyCriticalPath) {
  plan::Costs costs = plan::Costs::uniform(2);
  costs.link.latency = 0.5;
  const plan::Simulation simulation =
      simulate(make_program(schedule::make_schedule("1F1B", {2, 1, 1}), schedule::SendMode::Buffered), costs);
  const Panel panel = draw(simulation, TimeUnit::Units).panels[0];
  for (const auto& row : panel.compute) {
    for (const ActionBox& box : row)
      EXPECT_TRUE(box.critical) << to_string(box.action);  // one microbatch: the full path
  }
  // Rank 1 is twice as fast, so that the work of rank 0 bounds the step.
  plan::Costs uneven = plan::Costs::uniform(2);
  uneven.stages[1] = {.forward = 0.1, .input = 0.1, .weight = 0.1};
  const plan::Simulation other = simulate(
      make_program(schedule::make_schedule("GPipe", {2, 1, 3}), schedule::SendMode::Buffered), uneven);
  const Panel second = draw(other, TimeUnit::Units).panels[0];
  for (const ActionBox& box : second.compute[0]) EXPECT_TRUE(box.critical) << to_string(box.action);
  std::size_t critical = 0;
  for (const ActionBox& box : second.compute[1]) critical += box.critical;
  EXPECT_EQ(critical, 2u);  // 1F2, and 1B0, for which rank 0 waits
}

TEST(ViewDrawing, TransfersTakeOneTenthOfUnit) {
  const Drawing drawing =
      draw(make_program(schedule::make_schedule("1F1B", {2, 1, 1}), schedule::SendMode::Buffered));
  EXPECT_NEAR(drawing.panels[0].end, 1 + 0.1 + 1 + 2 + 0.1 + 2, 1e-9);
  EXPECT_EQ(drawing.time_unit, TimeUnit::Units);
}

}  // namespace
}  // namespace penstock::view
