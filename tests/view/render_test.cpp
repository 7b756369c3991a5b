// The renderers' text: every action is there once, at its place.
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/view/render.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <sstream>

namespace penstock {
namespace {

using testing::HasSubstr;

Simulation run(ScheduleKind kind, ScheduleShape shape, double latency = 0) {
  Costs costs = Costs::uniform(shape.stages());
  costs.link.latency = latency;
  return simulate(make_program(make_schedule(kind, shape), SendMode::Buffered), costs);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

TEST(Grid, Shows1F1BAsThePapersDo) {
  EXPECT_EQ(to_grid(draw(run(ScheduleKind::OneFOneB, {3, 1, 4}), false)),
            "1F1B: 3 ranks, 3 stages, 4 microbatches\n"
            "rank 0 F0 F1 F2 ............B0--- F3 B1--- ...B2--- ...B3---\n"
            "rank 1 ...F0 F1 ......B0--- F2 B1--- F3 B2--- ...B3---\n"
            "rank 2 ......F0 B0--- F1 B1--- F2 B2--- F3 B3---\n"
            "       F forward   B backward\n");
}

TEST(Grid, ColoursSayTheKindAndASqueezedGridFitsTheTerminal) {
  const Drawing drawing = draw(run(ScheduleKind::ZBVZeroBubble, {4, 2, 16}), false);
  const std::string text = to_grid(drawing, {.colour = true, .width = 80});
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

TEST(Grid, ATableIsDrawnSlotBySlot) {
  Schedule schedule{"mine", Placement::make(1, 1, PlacementStyle::Loop), 1, {}};
  schedule.ranks = {{Action::forward(StageId(0), MicrobatchId(0)), Action(),
                     Action::backward(StageId(0), MicrobatchId(0))}};
  EXPECT_THAT(to_grid(draw(schedule)), HasSubstr("rank 0 F0 ...B0\n"));
}

TEST(Svg, HasABoxForEveryAction) {
  for (const ScheduleKind kind :
       {ScheduleKind::OneFOneB, ScheduleKind::ZBVZeroBubble, ScheduleKind::DualPipeV}) {
    const ScheduleShape shape{4, info_of(kind).default_stages_per_rank, 8};
    const Simulation simulation = run(kind, shape);
    std::size_t parts = 0;
    for (const auto& rank : simulation.timeline.ranks) {
      for (const TimedAction& timed : rank) {
        if (timed.action.is_compute()) for_each_part(timed.action, [&](const Action&) { ++parts; });
      }
    }
    const std::string svg = to_svg(draw(simulation, false));
    EXPECT_EQ(count(svg, "<title>"), parts);
    EXPECT_THAT(svg, HasSubstr("<title>0F0</title>"));
    EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
    EXPECT_EQ(count(svg, "<rect"), count(svg, "</rect>") + count(svg, "/>") - count(svg, "<line"));
  }
}

TEST(Svg, EscapesTheName) {
  Simulation simulation = run(ScheduleKind::OneFOneB, {2, 1, 2});
  simulation.timeline.name = "<a & b>";
  EXPECT_THAT(to_svg(draw(simulation, false)), HasSubstr("&lt;a &amp; b&gt;"));
}

TEST(Trace, IsJsonWithSeparateTracksAndAnArrowForEveryMessage) {
  const Simulation simulation = run(ScheduleKind::OneFOneB, {4, 1, 6}, 0.25);
  const auto trace = nlohmann::json::parse(to_trace(draw(simulation, false)));
  std::map<std::string, std::pair<double, double>> arrows;
  std::size_t compute = 0, transfers = 0, starts = 0, ends = 0;
  std::map<std::pair<int, int>, std::string> tracks;
  for (const auto& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    const std::pair track{event.at("pid").get<int>(), event.at("tid").get<int>()};
    if (phase == "M" && event.at("name") == "thread_name") tracks[track] = event.at("args").at("name");
    if (phase == "X") {
      const bool transfer = event.at("cat") == "transfer";
      (transfer ? transfers : compute) += 1;
      EXPECT_EQ(transfer, tracks.at(track).starts_with("communication"));
    }
    if (phase == "s") arrows[event.at("id")].first = event.at("ts"), ++starts;
    if (phase == "f") arrows[event.at("id")].second = event.at("ts"), ++ends;
  }
  EXPECT_EQ(compute, 4u * 6 * 2);
  EXPECT_EQ(starts, 3u * 6 * 2);  // three boundaries, both ways
  EXPECT_EQ(ends, starts);
  EXPECT_EQ(transfers, 2 * starts);
  for (const auto& [id, ends_of] : arrows) EXPECT_GE(ends_of.second - ends_of.first, 250 - 1e-6) << id;
}

TEST(Trace, SlicesOfOneTrackNeverOverlap) {
  const Simulation simulation = run(ScheduleKind::DualPipeV, {4, 2, 10}, 0.4);
  const auto trace = nlohmann::json::parse(to_trace(draw(simulation, false)));
  std::map<std::pair<int, int>, double> last;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    double& end = last[{event.at("pid"), event.at("tid")}];
    EXPECT_GE(event.at("ts").get<double>(), end - 1e-6) << event.dump();
    end = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
}

TEST(Html, HoldsItsDataAndNothingFromElsewhere) {
  Simulation simulation = run(ScheduleKind::OneFOneB, {2, 1, 2});
  simulation.timeline.name = "</script><b>";
  const std::string page = to_html(draw(simulation, false));
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos) << "the page must not fetch anything";
  EXPECT_EQ(count(page, "{{"), count(page, "}}") - 0);
  EXPECT_THAT(page, HasSubstr("id=\"state\""));
}

}  // namespace
}  // namespace penstock
