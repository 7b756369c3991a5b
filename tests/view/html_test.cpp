// The HTML page without a browser: its frame, and the data that its script reads.
#include "view/drawings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace penstock::view {
namespace {

using testing::HasSubstr;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
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

//! Two objects of the same keys are equal; the message of a difference shows one key only.
void expect_same_fields(const nlohmann::json& actual, const nlohmann::json& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(actual.at(key), value) << key;
}

TEST(ViewHtml, DataOfEveryKindOfBox) {
  // Six numbers per box: kind, stage, microbatch (-1: none), start, length, flags. The kinds are numbered as
  // in `kinds`. The flags are the half of an overlap (1: top, 2: bottom), 4 on the critical path, and 8 per
  // lane.
  const auto data = page_data(to_html(draw_all_kinds()));
  const nlohmann::json panel = nlohmann::json::parse(R"({
    "name": "predicted",
    "end": 13.7,
    "summary": [["step", "13.7"], ["idle in the step", "55.5%"],
                ["idle inside the ranks' own spans", "45.3%"], ["peak memory", "2 activations"]],
    "compute": [
      [1, 0, 0, 0.5, 1, 0,    1, 0, 1, 1.5, 1, 0,   1, 3, 0, 4.5, 1, 0,    1, 3, 1, 6.25, 2, 1,
       2, 3, 0, 6.25, 2, 2,   3, 3, 1, 8.25, 1, 0,  2, 0, 0, 10.5, 2, 0,   4, 3, 1, 12.5, 0.3, 4,
       3, 0, 1, 12.8, 0.9, 4, 4, 0, 1, 13.7, 0, 4],
      [1, 1, 0, 1.7, 1, 0,    1, 2, 0, 2.7, 1, 0,   2, 2, 0, 8.25, 1, 0]],
    "communication": [
      [10, 0, -1, 0, 0.5, 0,  6, 0, 0, 1.5, 0.2, 0, 7, 3, 0, 2, 2.5, 0,    6, 0, 1, 2.5, 0.4, 8,
       7, 3, 1, 2.75, 3.5, 16, 9, 0, 0, 6.25, 4.25, 0, 8, 3, 0, 8.25, 0, 8, 12, 0, -1, 12.8, 0.9, 0],
      [7, 1, 0, 0, 1.7, 0,    6, 2, 0, 3.7, 0.8, 0, 9, 2, 0, 4, 4.25, 8,   8, 1, 0, 9.25, 1.25, 4]],
    "stages": [[0, 3], [1, 2]],
    "memory": [[0, 0, 0.5, 1, 1.5, 2, 12.5, 0], [1.7, 1, 9.25, 0]]
  })");
  expect_same_fields(data.at("panels").at(0), panel);
  const nlohmann::json expected = nlohmann::json::parse(R"({
    "ranks": 2,
    "seconds": false,
    "facts": [],
    "chunks": [0, 0, 1, 1],
    "memoryPeak": 2,
    "kinds": [{"name": "", "colour": "c", "meaning": "transfer"},
              {"name": "F", "colour": "f", "meaning": "forward"},
              {"name": "B", "colour": "b", "meaning": "backward"},
              {"name": "I", "colour": "i", "meaning": "backward: inputs"},
              {"name": "W", "colour": "w", "meaning": "backward: weights"},
              {"name": "OVERLAP_F_B", "colour": "b", "meaning": "backward"},
              {"name": "SEND_F", "colour": "c", "meaning": "transfer"},
              {"name": "RECV_F", "colour": "c", "meaning": "transfer"},
              {"name": "SEND_B", "colour": "c", "meaning": "transfer"},
              {"name": "RECV_B", "colour": "c", "meaning": "transfer"},
              {"name": "UNSHARD", "colour": "s", "meaning": "shard, unshard, reduce"},
              {"name": "RESHARD", "colour": "s", "meaning": "shard, unshard, reduce"},
              {"name": "REDUCE_GRAD", "colour": "s", "meaning": "shard, unshard, reduce"}]
  })");
  nlohmann::json rest = data;
  EXPECT_EQ(rest.at("panels").size(), 1u);
  rest.erase("panels");
  expect_same_fields(rest, expected);
}

TEST(ViewHtml, NumbersAreShort) {
  // There may be millions of numbers: 9 digits for times, 6 for lengths.
  schedule::Timeline timeline = make_timeline("mine", 1, 1, {{timed("0F0", 1 / 3.0, 1)}});
  timeline.memory = {{{1 / 3.0, 5}}};
  const std::string page = to_html(draw_one(timeline));
  EXPECT_THAT(page, HasSubstr("\"compute\":[[1,0,0,0.333333333,0.666667,0]]"));
  EXPECT_THAT(page, HasSubstr("\"memory\":[[0.333333333,5]]"));
}

TEST(ViewHtml, MemoryIsLeftOutIfNoneIsUsed) {
  schedule::Timeline timeline = make_timeline("mine", 1, 1, {{timed("0F0", 0, 1)}});
  auto data = page_data(to_html(draw_one(timeline)));
  EXPECT_EQ(data.at("memoryPeak"), 0);
  EXPECT_EQ(data.at("panels").at(0).at("memory"), nlohmann::json::array());
  timeline.memory = {{{0, 0}, {1, 0}}};
  data = page_data(to_html(draw_one(timeline)));
  EXPECT_EQ(data.at("memoryPeak"), 0);
  EXPECT_EQ(data.at("panels").at(0).at("memory"), nlohmann::json::array());
  timeline.memory = {{{0, 0}, {1, 1}}};
  data = page_data(to_html(draw_one(timeline)));
  EXPECT_EQ(data.at("memoryPeak"), 1);
  EXPECT_EQ(data.at("panels").at(0).at("memory"), nlohmann::json::parse("[[0, 0, 1, 1]]"));
}

TEST(ViewHtml, MeasuredMemoryHasAxisOfItsOwn) {
  schedule::Timeline predicted = make_timeline("mine", 1, 1, {{timed("0F0", 0, 1)}}), measured = predicted;
  measured.source = schedule::TimelineSource::Measured;
  Drawing drawing = draw_one(predicted);
  add_panel(drawing, measured);
  for (const auto& panel : page_data(to_html(drawing)).at("panels"))
    EXPECT_FALSE(panel.contains("memoryRange"));
  predicted.memory = {{{0, 2}, {1, 4}}};
  measured.memory = {{{0, 100}, {1, 140}}};
  drawing = draw_one(predicted);
  EXPECT_FALSE(page_data(to_html(drawing)).at("panels").at(0).contains("memoryRange"));
  add_panel(drawing, measured);
  const auto data = page_data(to_html(drawing));
  EXPECT_EQ(data.at("panels").at(0).at("memoryRange"), nlohmann::json({0, 4}));
  EXPECT_EQ(data.at("panels").at(1).at("memoryRange"), nlohmann::json({90, 140}));
  measured.memory = {{{0, 100}, {1, 100}}};
  const auto constant = page_data(to_html(draw_one(measured)));
  EXPECT_EQ(constant.at("panels").at(0).at("memoryRange"), nlohmann::json({0, 100}));
}

TEST(ViewHtml, DownsamplingKeepsFirstSampleOfEqualOnes) {
  // 60,000 samples in groups of 4. The memory is constant except for a rise in the second half of each group.
  schedule::Timeline timeline = make_timeline("mine", 1, 1, {{}});
  timeline.memory.resize(1);
  for (int i = 0; i < 60'000; ++i)
    timeline.memory[0].push_back({static_cast<double>(i), i % 4 < 2 ? 1u : 3u});
  const auto data = page_data(to_html(draw_one(timeline)));
  const auto samples = data.at("panels").at(0).at("memory").at(0).get<std::vector<double>>();
  ASSERT_EQ(samples.size(), 2u * 15'000);
  for (std::size_t group = 0; group < 15'000; ++group) {
    ASSERT_EQ(samples[2 * group], static_cast<double>(4 * group + 2));
    ASSERT_EQ(samples[2 * group + 1], 3);
  }
}

TEST(ViewHtml, NamesInDataDoNotCloseScript) {
  Drawing drawing = draw_one(make_timeline("mine", 1, 1, {{timed("0F0", 0, 1)}}));
  const std::string name = "</</script><b>a</b>/>";
  drawing.panels[0].name = name;
  const std::string page = to_html(drawing);
  EXPECT_EQ(count(page, "</script>"), 2u);  // of the data and of the script
  EXPECT_EQ(page_data(page).at("panels").at(0).at("name"), name);
}

std::string source_of(const std::string& part) {
  std::ifstream in(PENSTOCK_SOURCE_DIR "/src/view/page/page." + part, std::ios::binary);
  EXPECT_TRUE(in) << part;
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ViewHtml, FrameIsFilledWithItsParts) {
  const Drawing drawing = draw_all_kinds();
  const std::string page = to_html(drawing);
  const std::string begin = "<script id=\"data\" type=\"application/json\">";
  const std::size_t from = page.find(begin) + begin.size();
  std::string expected = source_of("html");
  for (const auto& [name, value] : {std::pair{"{{title}}", drawing.title},
                                    {"{{style}}", source_of("css")},
                                    {"{{data}}", page.substr(from, page.find("</script>", from) - from)},
                                    {"{{script}}", source_of("js")}}) {
    ASSERT_NE(expected.find(name), std::string::npos) << name;
    for (std::size_t at = 0; (at = expected.find(name, at)) != std::string::npos; at += value.size())
      expected.replace(at, std::string(name).size(), value);
  }
  EXPECT_TRUE(page == expected) << page;
}

}  // namespace
}  // namespace penstock::view
