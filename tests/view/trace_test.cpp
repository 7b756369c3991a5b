// The trace: events parsed and compared with the drawing.
#include "view/drawings.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <set>

namespace penstock::view {
namespace {

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

nlohmann::json event(const char* phase, int process, int track, const char* name) {
  return {{"ph", phase}, {"pid", process}, {"tid", track}, {"name", name}};
}

nlohmann::json name_event(const char* what, int process, int track, const char* name) {
  nlohmann::json json = event("M", process, track, what);
  json["args"] = {{"name", name}};
  return json;
}

nlohmann::json sort_event(int process) {
  nlohmann::json json = event("M", process, 0, "process_sort_index");
  json["args"] = {{"sort_index", process}};
  return json;
}

//! `args`: stage, then the microbatch, if there is one.
nlohmann::json slice(int process, int track, const char* action, const char* meaning, double start,
                     double length, std::vector<int> args, bool critical = false) {
  nlohmann::json json = event("X", process, track, action);
  json["cat"] = meaning;
  json["ts"] = start;
  json["dur"] = length;
  json["args"] = {{"stage", args.at(0)}};
  if (args.size() > 1) json["args"]["microbatch"] = args[1];
  if (critical) json["args"]["critical"] = true;
  return json;
}

nlohmann::json arrow(const char* phase, int process, int track, const char* id, double time) {
  nlohmann::json json = event(phase, process, track, "transfer");
  json["cat"] = "transfer";
  json["id"] = id;
  json["ts"] = time;
  if (*phase == 'f') json["bp"] = "e";  // the arrow ends at the slice that encloses its time
  return json;
}

nlohmann::json memory_event(int process, double time, int bytes) {
  nlohmann::json json = event("C", process, 0, "memory");
  json["ts"] = time;
  json["args"] = {{"bytes", bytes}};
  return json;
}

TEST(ViewTrace, EventsOfEveryKind) {
  const char *forward = "forward", *backward = "backward", *input = "backward: inputs",
             *weight = "backward: weights", *shard = "shard, unshard, reduce", *transfer = "transfer";
  // One unit is 1 ms; times are in microseconds. Ids are panel, direction, sender, receiver, microbatch.
  const std::vector<nlohmann::json> expected = {
      name_event("process_name", 0, 0, "rank 0"),
      sort_event(0),
      name_event("thread_name", 0, 0, "compute"),
      slice(0, 0, "0F0", forward, 500, 1000, {0, 0}),
      slice(0, 0, "0F1", forward, 1500, 1000, {0, 1}),
      slice(0, 0, "3F0", forward, 4500, 1000, {3, 0}),
      slice(0, 0, "3F1", forward, 6250, 2000, {3, 1}),
      slice(0, 99, "3B0", backward, 6250, 2000, {3, 0}),
      name_event("thread_name", 0, 99, "compute, overlapped"),
      slice(0, 0, "3I1", input, 8250, 1000, {3, 1}),
      slice(0, 0, "0B0", backward, 10500, 2000, {0, 0}),
      slice(0, 0, "3W1", weight, 12500, 300, {3, 1}, true),
      slice(0, 0, "0I1", input, 12800, 900, {0, 1}, true),
      slice(0, 0, "0W1", weight, 13700, 0, {0, 1}, true),
      name_event("thread_name", 0, 1, "communication"),
      slice(0, 1, "0UNSHARD", shard, 0, 500, {0}),
      slice(0, 1, "0SEND_F0", transfer, 1500, 200, {0, 0}),
      arrow("s", 0, 1, "0.f.0.1.0", 1500),
      slice(0, 1, "3RECV_F0", transfer, 2000, 2500, {3, 0}),
      arrow("f", 0, 1, "0.f.2.3.0", 4500),
      name_event("thread_name", 0, 2, "communication 2"),
      slice(0, 2, "0SEND_F1", transfer, 2500, 400, {0, 1}),
      arrow("s", 0, 2, "0.f.0.1.1", 2500),
      name_event("thread_name", 0, 3, "communication 3"),
      slice(0, 3, "3RECV_F1", transfer, 2750, 3500, {3, 1}),
      arrow("f", 0, 3, "0.f.2.3.1", 6250),
      slice(0, 1, "0RECV_B0", transfer, 6250, 4250, {0, 0}),
      arrow("f", 0, 1, "0.b.1.0.0", 10500),
      slice(0, 2, "3SEND_B0", transfer, 8250, 0, {3, 0}),
      arrow("s", 0, 2, "0.b.3.2.0", 8250),
      slice(0, 1, "0REDUCE_GRAD", shard, 12800, 900, {0}),
      memory_event(0, 0, 0),
      memory_event(0, 500, 1),
      memory_event(0, 1500, 2),
      memory_event(0, 12500, 0),
      name_event("process_name", 1, 0, "rank 1"),
      sort_event(1),
      name_event("thread_name", 1, 0, "compute"),
      slice(1, 0, "1F0", forward, 1700, 1000, {1, 0}),
      slice(1, 0, "2F0", forward, 2700, 1000, {2, 0}),
      slice(1, 0, "2B0", backward, 8250, 1000, {2, 0}),
      name_event("thread_name", 1, 1, "communication"),
      slice(1, 1, "1RECV_F0", transfer, 0, 1700, {1, 0}),
      arrow("f", 1, 1, "0.f.0.1.0", 1700),
      slice(1, 1, "2SEND_F0", transfer, 3700, 800, {2, 0}),
      arrow("s", 1, 1, "0.f.2.3.0", 3700),
      name_event("thread_name", 1, 2, "communication 2"),
      slice(1, 2, "2RECV_B0", transfer, 4000, 4250, {2, 0}),
      arrow("f", 1, 2, "0.b.3.2.0", 8250),
      slice(1, 1, "1SEND_B0", transfer, 9250, 1250, {1, 0}, true),
      arrow("s", 1, 1, "0.b.1.0.0", 9250),
      memory_event(1, 1700, 1),
      memory_event(1, 9250, 0),
  };
  const auto trace = nlohmann::json::parse(to_trace(draw_all_kinds()));
  EXPECT_EQ(trace.at("displayTimeUnit"), "ms");
  const auto& events = trace.at("traceEvents");
  ASSERT_EQ(events.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(events.at(i), expected[i]) << "event " << i;
}

TEST(ViewTrace, TableHasNeitherCommunicationNorMemory) {
  schedule::Schedule schedule{"mine", schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop), 1, {}};
  schedule.ranks = {{schedule::parse_action("0F0"), schedule::Action(), schedule::parse_action("0B0")}};
  const auto trace = nlohmann::json::parse(to_trace(draw(schedule)));
  EXPECT_EQ(trace.at("traceEvents"),
            nlohmann::json({name_event("process_name", 0, 0, "rank 0"), sort_event(0),
                            name_event("thread_name", 0, 0, "compute"),
                            slice(0, 0, "0F0", "forward", 0, 1000, {0, 0}),
                            slice(0, 0, "0B0", "backward", 2000, 1000, {0, 0})}));
}

TEST(ViewTrace, WritesOneEventPerLineInShortNumbers) {
  // Thirds of a second in microseconds, with 12 significant digits.
  schedule::Timeline timeline = make_timeline("mine", 1, 1, {{timed("0F0", 1 / 3.0, 1)}});
  EXPECT_EQ(to_trace(draw_one(timeline, TimeUnit::Seconds)),
            R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","pid":0,"tid":0,"name":"process_name","args":{"name":"rank 0"}},
{"ph":"M","pid":0,"tid":0,"name":"process_sort_index","args":{"sort_index":0}},
{"ph":"M","pid":0,"tid":0,"name":"thread_name","args":{"name":"compute"}},
{"ph":"X","pid":0,"tid":0,"name":"0F0","cat":"forward","ts":333333.333333,"dur":666666.666667,"args":{"stage":0,"microbatch":0}}
]}
)");
}

}  // namespace
}  // namespace penstock::view
