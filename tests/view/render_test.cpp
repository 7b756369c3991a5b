// The output of the renderers: every action appears once, at its position.
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/view/render.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace penstock::view {
namespace {

using testing::HasSubstr;

plan::Simulation run(schedule::ScheduleKind kind, schedule::ScheduleShape shape, double latency = 0) {
  plan::Costs costs = plan::Costs::uniform(shape.num_stages());
  costs.link.latency = latency;
  return simulate(make_program(make_schedule(kind, shape), schedule::SendMode::Buffered), costs);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
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

TEST(ViewSvg, HasBoxForEveryAction) {
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::ZBVZeroBubble,
        schedule::ScheduleKind::DualPipeV}) {
    const schedule::ScheduleShape shape{4, info_of(kind).default_stages_per_rank, 8};
    const plan::Simulation simulation = run(kind, shape);
    std::size_t parts = 0;
    for (const auto& rank : simulation.timeline.ranks) {
      for (const schedule::TimedAction& timed : rank) {
        if (timed.action.is_compute()) for_each_part(timed.action, [&](const schedule::Action&) { ++parts; });
      }
    }
    const std::string svg = to_svg(draw(simulation, TimeUnit::Units));
    EXPECT_EQ(count(svg, "<title>"), parts);
    EXPECT_THAT(svg, HasSubstr("<title>0F0</title>"));
    EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
    EXPECT_EQ(count(svg, "<rect"), count(svg, "</rect>") + count(svg, "/>") - count(svg, "<line"));
  }
}

TEST(ViewSvg, EscapesName) {
  plan::Simulation simulation = run(schedule::ScheduleKind::OneFOneB, {2, 1, 2});
  simulation.timeline.name = "<a & b>";
  EXPECT_THAT(to_svg(draw(simulation, TimeUnit::Units)), HasSubstr("&lt;a &amp; b&gt;"));
}

TEST(ViewTrace, HasSeparateTracksAndArrowForEveryMessage) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::OneFOneB, {4, 1, 6}, 0.25);
  const auto trace = nlohmann::json::parse(to_trace(draw(simulation, TimeUnit::Units)));
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
  EXPECT_EQ(starts, 3u * 6 * 2);  // three boundaries, in both directions
  EXPECT_EQ(ends, starts);
  EXPECT_EQ(transfers, 2 * starts);
  for (const auto& [id, ends_of] : arrows) EXPECT_GE(ends_of.second - ends_of.first, 250 - 1e-6) << id;
}

TEST(ViewTrace, SlicesOfOneTrackNeverOverlap) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::DualPipeV, {4, 2, 10}, 0.4);
  const auto trace = nlohmann::json::parse(to_trace(draw(simulation, TimeUnit::Units)));
  std::map<std::pair<int, int>, double> last;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    double& end = last[{event.at("pid"), event.at("tid")}];
    EXPECT_GE(event.at("ts").get<double>(), end - 1e-6) << event.dump();
    end = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
}

TEST(ViewTrace, CountersMatchMemorySamples) {
  for (const TimeUnit unit : {TimeUnit::Units, TimeUnit::Seconds}) {
    const double microseconds = unit == TimeUnit::Seconds ? 1e6 : 1e3;
    const plan::Simulation simulation = run(schedule::ScheduleKind::ZB1P, {3, 1, 4});
    const auto trace = nlohmann::json::parse(to_trace(draw(simulation, unit)));
    std::vector<std::vector<std::pair<double, std::uint64_t>>> counters(3);
    for (const auto& event : trace.at("traceEvents")) {
      if (event.at("ph") != "C") continue;
      EXPECT_EQ(event.at("name"), "memory");
      counters.at(event.at("pid").get<std::size_t>())
          .emplace_back(event.at("ts").get<double>(), event.at("args").at("bytes").get<std::uint64_t>());
    }
    for (std::size_t r = 0; r < 3; ++r) {
      const auto& samples = simulation.timeline.memory[r];
      ASSERT_EQ(counters[r].size(), samples.size());
      for (std::size_t i = 0; i < samples.size(); ++i) {
        EXPECT_NEAR(counters[r][i].first, samples[i].time * microseconds, 1e-6);
        EXPECT_EQ(counters[r][i].second, samples[i].bytes);
      }
    }
  }
}

TEST(ViewTrace, KeepsNanosecondsOfLongSteps) {
  schedule::Timeline timeline;
  timeline.placement = schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop);
  timeline.microbatches = 1;
  timeline.ranks = {{{schedule::Action::forward(StageId(0), MicrobatchId(0)), 123.456789012, 246.913578025}}};
  timeline.memory = {{{123.456789012, 7}}};
  const auto trace = nlohmann::json::parse(to_trace(draw(std::span(&timeline, 1), TimeUnit::Seconds)));
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") continue;
    EXPECT_NEAR(event.at("ts").get<double>(), 123456789.012, 1e-4) << event;  // microseconds
    if (event.at("ph") == "X") {
      EXPECT_NEAR(event.at("dur").get<double>(), 123456789.013, 1e-4) << event;
    }
  }
}

TEST(ViewTrace, NamesProcessesTracksAndSlices) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::DualPipeV, {2, 2, 6}, 0.3);
  Drawing drawing = draw(simulation, TimeUnit::Units);
  schedule::Timeline measured = simulation.timeline;
  measured.source = schedule::TimelineSource::Measured;
  add_panel(drawing, measured);
  const auto trace = nlohmann::json::parse(to_trace(drawing));
  std::map<int, std::string> processes;
  std::map<int, int> order;
  std::map<std::pair<int, int>, std::string> tracks;
  std::map<std::pair<int, std::string>, std::pair<double, double>> slices;
  std::set<std::string> ids;
  std::set<std::pair<int, int>> used;
  std::size_t critical = 0, overlapped = 0;
  for (const auto& event : trace.at("traceEvents")) {
    const int pid = event.at("pid"), tid = event.at("tid");
    if (event.at("name") == "process_name") processes[pid] = event.at("args").at("name");
    if (event.at("name") == "process_sort_index") order[pid] = event.at("args").at("sort_index");
    if (event.at("name") == "thread_name") {
      EXPECT_TRUE((tracks.emplace(std::pair{pid, tid}, event.at("args").at("name")).second));
    }
    if (event.at("ph") == "s") {
      EXPECT_TRUE(ids.insert(event.at("id")).second) << event;
    }
    if (event.at("ph") != "X") continue;
    used.insert({pid, tid});
    slices[{pid, event.at("name")}] = {event.at("ts"), event.at("dur")};
    EXPECT_EQ(event.at("args").at("stage"),
              schedule::parse_action(event.at("name").get<std::string>()).stage().value);
    critical += event.at("args").contains("critical");
    overlapped += tid == 99;
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "rank 0 (predicted)"},
                                                   {1, "rank 1 (predicted)"},
                                                   {2, "rank 0 (measured)"},
                                                   {3, "rank 1 (measured)"}}));
  for (const auto& [pid, index] : order) EXPECT_EQ(pid, index);
  EXPECT_EQ(order.size(), 4u);
  for (const auto& [track, name] : tracks) {
    const auto lane = track.second;
    EXPECT_EQ(name, lane == 0    ? "compute"
                    : lane == 99 ? "compute, overlapped"
                    : lane == 1  ? "communication"
                                 : "communication " + std::to_string(lane));
  }
  for (const auto& track : used) EXPECT_TRUE(tracks.contains(track)) << track.first << " " << track.second;
  EXPECT_GT(critical, 0u);
  EXPECT_GT(overlapped, 0u);
  for (std::size_t r = 0; r < 2; ++r) {
    for (const ActionBox& box : drawing.panels[0].compute[r]) {
      const auto& [start, length] = slices.at({static_cast<int>(r), to_string(box.action)});
      EXPECT_NEAR(start, box.start * 1e3, 1e-6);
      EXPECT_NEAR(length, (box.end - box.start) * 1e3, 1e-6);
    }
  }
}

//! The data that the script of the page reads.
nlohmann::json page_data(const std::string& page) {
  const std::string begin = "<script id=\"data\" type=\"application/json\">";
  const std::size_t from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

TEST(ViewHtml, ContainsEveryBoxSampleAndSummary) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::DualPipeV, {2, 2, 6}, 0.3);
  Drawing drawing = draw(simulation, TimeUnit::Units);
  add_panel(drawing, simulation.timeline);
  const auto data = page_data(to_html(drawing));
  EXPECT_EQ(data.at("ranks"), 2);
  EXPECT_EQ(data.at("seconds"), false);
  EXPECT_EQ(data.at("chunks"), nlohmann::json(drawing.chunk_of_stage));
  EXPECT_EQ(data.at("memoryPeak"), simulation.peak_memory());
  EXPECT_EQ(data.at("kinds").at(static_cast<std::size_t>(schedule::ActionKind::Forward)).at("meaning"),
            "forward");
  ASSERT_EQ(data.at("panels").size(), 2u);
  for (std::size_t p = 0; p < 2; ++p) {
    const auto& panel = data.at("panels").at(p);
    const Panel& drawn = drawing.panels[p];
    EXPECT_EQ(panel.at("name"), drawn.name);
    EXPECT_NEAR(panel.at("end"), drawn.end, 1e-6);
    EXPECT_EQ(panel.at("summary"), nlohmann::json(drawn.summary));
    for (const auto& [key, rows] :
         {std::pair{"compute", &drawn.compute}, {"communication", &drawn.communication}}) {
      ASSERT_EQ(panel.at(key).size(), rows->size());
      for (std::size_t r = 0; r < rows->size(); ++r) {
        const auto numbers = panel.at(key).at(r).get<std::vector<double>>();
        ASSERT_EQ(numbers.size(), 6 * (*rows)[r].size());
        for (std::size_t i = 0; i < (*rows)[r].size(); ++i) {
          const ActionBox& box = (*rows)[r][i];
          const bool microbatch = box.action.is_compute() || box.action.is_transfer();
          const std::vector<double> expected{
              static_cast<double>(box.action.kind()),
              static_cast<double>(box.action.stage().value),
              microbatch ? box.action.microbatch().value : -1.0,
              box.start,
              box.end - box.start,
              static_cast<int>(box.part) + (box.critical ? 4.0 : 0.0) + 8.0 * box.lane};
          for (std::size_t k = 0; k < 6; ++k) EXPECT_NEAR(numbers[6 * i + k], expected[k], 1e-4);
        }
      }
    }
    for (std::size_t r = 0; r < 2; ++r) {
      std::vector<double> samples;
      for (const schedule::MemorySample& sample : drawn.memory[r]) {
        samples.push_back(sample.time);
        samples.push_back(static_cast<double>(sample.bytes));
      }
      const auto numbers = panel.at("memory").at(r).get<std::vector<double>>();
      ASSERT_EQ(numbers.size(), samples.size());
      for (std::size_t i = 0; i < samples.size(); ++i) EXPECT_NEAR(numbers[i], samples[i], 1e-6);
    }
  }
}

TEST(ViewHtml, DownsamplesMemoryCurvesButKeepsPeak) {
  schedule::Timeline timeline;
  timeline.placement = schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop);
  timeline.ranks.resize(1);
  timeline.memory.resize(1);
  for (int i = 0; i < 50'001; ++i)
    timeline.memory[0].push_back({static_cast<double>(i), i == 33'333 ? 99u : 1u});
  const auto data = page_data(to_html(draw(std::span(&timeline, 1), TimeUnit::Seconds)));
  const auto samples = data.at("panels").at(0).at("memory").at(0).get<std::vector<double>>();
  EXPECT_LE(samples.size(), 2u * 20'000);
  EXPECT_GE(samples.size(), 2u * 10'000);
  bool peak = false;
  for (std::size_t i = 0; i + 1 < samples.size(); i += 2)
    peak |= samples[i] == 33'333 && samples[i + 1] == 99;
  EXPECT_TRUE(peak);
  EXPECT_EQ(data.at("memoryPeak"), 99);
  EXPECT_EQ(data.at("seconds"), true);
}

TEST(ViewHtml, EscapesTitle) {
  plan::Simulation simulation = run(schedule::ScheduleKind::OneFOneB, {2, 1, 2});
  simulation.timeline.name = "<a & \"b\">";
  EXPECT_THAT(to_html(draw(simulation, TimeUnit::Units)),
              HasSubstr("<title>&lt;a &amp; &quot;b&quot;&gt;: 2 ranks"));
}

TEST(ViewHtml, IsSelfContained) {
  plan::Simulation simulation = run(schedule::ScheduleKind::OneFOneB, {2, 1, 2});
  simulation.timeline.name = "</script><b>";
  const std::string page = to_html(draw(simulation, TimeUnit::Units));
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos) << "the page must not fetch anything";
  EXPECT_EQ(count(page, "{{"), count(page, "}}") - 0);
  EXPECT_THAT(page, HasSubstr("id=\"state\""));
}

}  // namespace
}  // namespace penstock::view
