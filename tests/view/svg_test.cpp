// The geometry of the figure: boxes are at their times in the row of their rank, and the legend lists what is
// drawn.
#include "view/drawings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

namespace penstock::view {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Rect {
  std::string classes, title;
  double x = 0, y = 0, width = 0, height = 0;
};

struct Label {
  std::string classes, text;
  double x = 0, y = 0;
};

struct Svg {
  explicit Svg(const Drawing& drawing) : source(to_svg(drawing)) {
    static const std::regex rect(
        R"re(<rect class="([^"]*)" x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"(?:/>|><title>([^<]*)</title></rect>))re");
    for (std::sregex_iterator at(source.begin(), source.end(), rect), end; at != end; ++at) {
      const auto& m = *at;
      rects.push_back({m[1], m[6], std::stod(m[2]), std::stod(m[3]), std::stod(m[4]), std::stod(m[5])});
    }
    static const std::regex text(R"re(<text class="([^"]*)" x="([^"]*)" y="([^"]*)">([^<]*)</text>)re");
    for (std::sregex_iterator at(source.begin(), source.end(), text), end; at != end; ++at)
      labels.push_back({(*at)[1], (*at)[4], std::stod((*at)[2]), std::stod((*at)[3])});
    static const std::regex tick(
        R"re(<line class="tick" x1="([^"]*)" x2="([^"]*)" y1="([^"]*)" y2="([^"]*)")re");
    for (std::sregex_iterator at(source.begin(), source.end(), tick), end; at != end; ++at) {
      EXPECT_EQ((*at)[1], (*at)[2]);
      ticks.push_back({"", "", std::stod((*at)[1]), std::stod((*at)[3]), 0, std::stod((*at)[4])});
    }
  }

  std::vector<Rect> with_class(const std::string& name) const {
    std::vector<Rect> found;
    for (const Rect& rect : rects) {
      if (rect.classes == name) found.push_back(rect);
    }
    return found;
  }
  std::vector<std::string> texts(const std::string& classes) const {
    std::vector<std::string> found;
    for (const Label& label : labels) {
      if (label.classes == classes) found.push_back(label.text);
    }
    return found;
  }
  //! The entries of the legend: the labels after the last box.
  std::vector<std::string> legend() const { return texts("l"); }

  std::string source;
  std::vector<Rect> rects, ticks;
  std::vector<Label> labels;
};

TEST(ViewSvgFigure, HasBoxForEveryAction) {
  const auto count = [](const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
    return n;
  };
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
    EXPECT_EQ(count(svg, "<rect"), count(svg, "</rect>") + count(svg, "/>") - count(svg, "<line"));
  }
}

TEST(ViewSvgFigure, BoxesAreAtTheirTimesInRankRow) {
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::OneFOneB, schedule::ScheduleKind::ZBVZeroBubble,
        schedule::ScheduleKind::DualPipeV}) {
    const plan::Simulation simulation = run(kind, {3, info_of(kind).default_stages_per_rank, 6}, 0.2);
    const Drawing drawing = draw(simulation, TimeUnit::Units);
    const Svg svg(drawing);
    const std::vector<Rect> lanes = svg.with_class("lane");
    ASSERT_EQ(lanes.size(), 3u);
    const double scale = lanes[0].width / simulation.step_time;
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(lanes[r].x, lanes[0].x);
      EXPECT_EQ(lanes[r].width, lanes[0].width);
      EXPECT_TRUE(r == 0 || lanes[r].y > lanes[r - 1].y + lanes[r - 1].height);
    }
    for (std::size_t r = 0; r < 3; ++r) {
      const double next_row = r + 1 < 3 ? lanes[r + 1].y : 1e9;
      for (const auto* row : {&drawing.panels[0].compute[r], &drawing.panels[0].communication[r]}) {
        for (const ActionBox& box : *row) {
          const bool compute = row == &drawing.panels[0].compute[r];
          const std::string title = to_string(box.action);
          const auto found = std::find_if(svg.rects.begin(), svg.rects.end(), [&](const Rect& rect) {
            return rect.title == title && rect.y >= lanes[r].y && rect.y < next_row;
          });
          ASSERT_NE(found, svg.rects.end()) << title << " on rank " << r;
          EXPECT_NEAR(found->x, lanes[0].x + box.start * scale, 0.01) << title;
          const double width = (box.end - box.start) * scale;
          if (compute) {
            EXPECT_NEAR(found->width, width - 1, 0.01) << title;  // a gap of one unit to the next box
            const double half = lanes[r].height / 2;
            EXPECT_NEAR(found->height, box.part == BoxPart::Full ? 2 * half : half - 0.5, 0.01);
            EXPECT_NEAR(found->y, lanes[r].y + (box.part == BoxPart::BottomHalf ? half + 0.5 : 0), 0.01);
          } else {
            EXPECT_NEAR(found->width, std::max(width, 0.3), 0.01) << title;
            EXPECT_GE(found->y, lanes[r].y + lanes[r].height);
            EXPECT_LE(found->y + found->height, next_row);
          }
        }
      }
    }
  }
}

TEST(ViewSvgFigure, CommunicationLanesDoNotOverlap) {
  const Drawing drawing = draw(run(schedule::ScheduleKind::DualPipeV, {4, 2, 10}, 0.7), TimeUnit::Units);
  const Svg svg(drawing);
  const std::vector<Rect> transfers = svg.with_class("c");
  std::set<double> rows;
  for (const Rect& rect : transfers) {
    if (rect.title.empty()) continue;  // of the legend
    rows.insert(rect.y);
  }
  const std::size_t ranks = 4;
  EXPECT_GT(rows.size(), ranks);  // some rank has several lanes
  for (const double one : rows) {
    for (const double other : rows) {
      EXPECT_TRUE(one >= other || other - one > 5.99) << one << " and " << other;
    }
  }
}

TEST(ViewSvgFigure, BoxesShowCenteredMicrobatchIfItFits) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::OneFOneB, {2, 1, 3});
  const Svg svg(draw(simulation, TimeUnit::Units));
  std::size_t numbers = 0;
  for (const Label& label : svg.labels) {
    if (label.classes != "n") continue;
    ++numbers;
    const auto around = std::find_if(svg.rects.begin(), svg.rects.end(), [&](const Rect& rect) {
      return !rect.title.empty() && label.x > rect.x && label.x < rect.x + rect.width && label.y > rect.y &&
             label.y < rect.y + rect.height;
    });
    ASSERT_NE(around, svg.rects.end());
    EXPECT_EQ(around->title.substr(2), label.text);  // 0F2: stage, kind, microbatch
    EXPECT_NEAR(label.x, around->x + around->width / 2, 0.01);
    EXPECT_NEAR(label.y, around->y + around->height / 2 + 4, 0.01);
  }
  EXPECT_EQ(numbers, 2u * 3 * 2);
  // A long step has no room for numbers.
  const Svg narrow(draw(run(schedule::ScheduleKind::OneFOneB, {2, 1, 200}), TimeUnit::Units));
  EXPECT_TRUE(narrow.texts("n").size() < 2 * 2 * 200) << narrow.texts("n").size();
}

TEST(ViewSvgFigure, LegendListsEachDrawnKindOnce) {
  EXPECT_THAT(Svg(draw(run(schedule::ScheduleKind::OneFOneB, {2, 1, 4}), TimeUnit::Units)).legend(),
              ElementsAre("forward", "backward"));
  EXPECT_THAT(Svg(draw(run(schedule::ScheduleKind::OneFOneB, {2, 1, 4}, 0.1), TimeUnit::Units)).legend(),
              ElementsAre("forward", "backward", "transfer"));
  EXPECT_THAT(Svg(draw(run(schedule::ScheduleKind::ZB1P, {2, 1, 4}), TimeUnit::Units)).legend(),
              ElementsAre("forward", "backward: inputs", "backward: weights"));
  // From left to right, without overlap, each after a box of its color.
  const Svg svg(draw(run(schedule::ScheduleKind::ZB1P, {2, 1, 4}), TimeUnit::Units));
  const std::vector<Rect> rows = svg.with_class("lane");
  double last = 0;
  for (const Label& label : svg.labels) {
    if (label.classes != "l") continue;
    EXPECT_GT(label.x, last);
    last = label.x + 6 * static_cast<double>(label.text.size());
    const auto box = std::find_if(svg.rects.begin(), svg.rects.end(), [&](const Rect& rect) {
      return rect.title.empty() && rect.x < label.x && rect.x > label.x - 25 && rect.y < label.y &&
             rect.y + rect.height > label.y - 5 && rect.height < 20;
    });
    ASSERT_NE(box, svg.rects.end()) << label.text;
    EXPECT_GT(box->y, rows.back().y + rows.back().height) << "below the rows";
    EXPECT_EQ(box->classes, label.text == "forward" ? "f" : label.text == "backward: inputs" ? "i" : "w");
  }
}

TEST(ViewSvgFigure, SeveralPanelsAreNamed) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::OneFOneB, {2, 1, 2});
  const Svg one(draw(simulation, TimeUnit::Units));
  EXPECT_THAT(one.texts("h"), ElementsAre("1F1B: 2 ranks, 2 stages, 2 microbatches"));
  schedule::Timeline measured = simulation.timeline;
  measured.source = schedule::TimelineSource::Measured;
  Drawing both = draw(simulation, TimeUnit::Units);
  add_panel(both, measured);
  const Svg two(both);
  EXPECT_THAT(two.texts("h"),
              ElementsAre("1F1B: 2 ranks, 2 stages, 2 microbatches", "predicted", "measured"));
  EXPECT_EQ(two.texts("l r"), (std::vector<std::string>{"rank 0", "rank 1", "rank 0", "rank 1"}));
  const std::vector<Rect> lanes = two.with_class("lane");
  ASSERT_EQ(lanes.size(), 4u);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_GT(lanes[i].y, lanes[i - 1].y + lanes[i - 1].height);
  // Every name is above its own rows and below those of the previous panel.
  std::vector<double> names;
  for (const Label& label : two.labels) {
    if (label.classes == "h" && label.text != both.title) names.push_back(label.y);
  }
  EXPECT_LT(names[0], lanes[0].y);
  EXPECT_GT(names[1] - 10, lanes[1].y + lanes[1].height);  // a line of text is about 10 high
  EXPECT_LT(names[1], lanes[2].y);
}

TEST(ViewSvgFigure, AxisShowsRoundTimesAtTheirPositions) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::OneFOneB, {2, 1, 8});  // 27 units
  const Svg svg(draw(simulation, TimeUnit::Units));
  const Rect lane = svg.with_class("lane")[0];
  const double scale = lane.width / 27;
  const std::vector<std::string> texts = svg.texts("l m");
  ASSERT_EQ(texts.size(), svg.ticks.size());
  ASSERT_GE(texts.size(), 4u);
  EXPECT_EQ(texts[0], "0");
  const double step = std::stod(texts[1]);
  EXPECT_THAT((std::set<double>{1, 2, 5, 10}), testing::Contains(step));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_NEAR(std::stod(texts[i]), step * static_cast<double>(i), 1e-9);
    EXPECT_NEAR(svg.ticks[i].x, lane.x + step * static_cast<double>(i) * scale, 0.01);
    EXPECT_LT(svg.ticks[i].y, lane.y);
    EXPECT_GT(svg.ticks[i].height, lane.y + lane.height);  // down to the last row
  }
  for (const Label& label : svg.labels) {
    if (label.classes != "l m") continue;
    EXPECT_LT(label.y, lane.y) << label.text << " stands above the rows";
  }
  EXPECT_LE(step * static_cast<double>(texts.size() - 1), 27);
  EXPECT_GT(step * static_cast<double>(texts.size()), 27);
  EXPECT_GE(step * scale, 45);  // not crowded
  plan::Simulation seconds = run(schedule::ScheduleKind::OneFOneB, {2, 1, 8});
  EXPECT_THAT(Svg(draw(seconds, TimeUnit::Seconds)).texts("l m"), testing::Contains("5.00 s"));
}

TEST(ViewSvgFigure, TicksAreAtSmallestRoundStepOf90Pixels) {
  // A single box from 0 to `end` is 640 pixels wide.
  std::vector<double> ends = {64 / 9.0, 128 / 9.0};  // steps of 1 and 2 are exactly 90 pixels
  for (double end = 5; end < 60; end *= 1.007) ends.push_back(end);
  for (double end = 0.01; end < 5000; end *= 7) ends.push_back(end);
  for (const double end : ends) {
    const Svg svg(draw_one(make_timeline("mine", 1, 1, {{timed("0F0", 0, end)}})));
    const double scale = svg.with_class("lane").at(0).width / end;
    ASSERT_NEAR(end * scale, 640, 0.01);
    double step = 0;
    for (double power = 1e-4; step == 0; power *= 10) {
      for (const double factor : {1, 2, 5}) {
        if (step == 0 && factor * power * 640 / end >= 90 - 1e-9) step = factor * power;
      }
    }
    ASSERT_EQ(svg.ticks.size(), static_cast<std::size_t>(end / step * (1 + 1e-9)) + 1) << end;
    const std::vector<std::string> texts = svg.texts("l m");
    for (std::size_t i = 0; i < svg.ticks.size(); ++i) {
      const double time = static_cast<double>(i) * step;
      EXPECT_NEAR(svg.ticks[i].x, svg.ticks[0].x + time * 640 / end, 0.001) << end;
      EXPECT_NEAR(std::stod(texts.at(i)), time, 1e-9 * end) << end;
    }
  }
}

TEST(ViewSvgFigure, LongTimesHaveFiveDigits) {
  EXPECT_THAT(Svg(draw_one(make_timeline("mine", 1, 1, {{timed("0F0", 0, 120'000)}}))).texts("l m"),
              ElementsAre("0", "20000", "40000", "60000", "80000", "1e+05", "1.2e+05"));
}

TEST(ViewSvgFigure, ThousandsOfRowsKeepTheirPositions) {
  // A row takes 24 pixels and a gap of 5. Above the rows of a panel: 16 + 14 for the title and 14 below it,
  // or the panel before it; 18 + 4 for the name; 22 for the axis.
  const int ranks = 3500;
  std::vector<std::vector<schedule::TimedAction>> rows(static_cast<std::size_t>(ranks));
  rows.back() = {timed("(0F1;0B0)OVERLAP_F_B", 0, 7)};
  const schedule::Timeline timeline = make_timeline("mine", ranks, 2, rows);
  Drawing drawing = draw_one(timeline);
  add_panel(drawing, timeline);
  const int first = 16 + 14 + 14 + 18 + 4 + 22, second = first + 29 * ranks + 18 + 4 + 22;
  const int last = second + 29 * (ranks - 1);  // 203,103; coordinates have six digits
  const std::string svg = to_svg(drawing);
  const auto has = [&](const std::string& part) { return svg.find(part) != std::string::npos; };
  const auto text = [](int number) { return std::to_string(number); };
  EXPECT_TRUE(has("height=\"" + text(last + 24 + 5 + 18 + 16) + "\"><style>")) << svg.substr(0, 200);
  EXPECT_TRUE(has(" " + text(last + 24 + 5 + 18 + 16) + "\" width=\"718\""));
  EXPECT_TRUE(has("<text class=\"h\" x=\"62\" y=\"" + text(second - 22 - 4) + "\">predicted</text>"));
  EXPECT_TRUE(has("y1=\"" + text(second - 5) + "\" y2=\"" + text(last + 24) + "\"/>"));
  EXPECT_TRUE(has("y=\"" + text(last + 16) + "\">rank 3499</text>"));
  EXPECT_TRUE(has("y=\"" + text(last) + "\" width=\"639\" height=\"11.5\"><title>0F1</title>"));
  EXPECT_TRUE(has("y=\"" + text(last + 13) + "\" width=\"639\" height=\"11.5\"><title>0B0</title>"));
  EXPECT_TRUE(has("y=\"" + text(last + 10) + "\">1</text>"));  // at 9.75
  EXPECT_TRUE(has("y=\"" + text(last + 22) + "\">0</text>"));  // at 22.25
}

TEST(ViewSvgFigure, EverythingIsInsideViewBox) {
  for (const int microbatches : {1, 4, 60}) {
    const Svg svg(
        draw(run(schedule::ScheduleKind::ZBVZeroBubble, {4, 2, microbatches}, 0.3), TimeUnit::Units));
    std::smatch size;
    ASSERT_TRUE(std::regex_search(
        svg.source, size,
        std::regex(R"re(viewBox="0 0 ([^ ]*) ([^"]*)" width="([^"]*)" height="([^"]*)")re")));
    EXPECT_EQ(size[1], size[3]);
    EXPECT_EQ(size[2], size[4]);
    const double width = std::stod(size[1]), height = std::stod(size[2]);
    for (const Rect& rect : svg.rects) {
      EXPECT_GE(rect.x, 0);
      EXPECT_GT(rect.y, 0);
      EXPECT_LE(rect.x + rect.width, width);
      EXPECT_LE(rect.y + rect.height, height);
    }
    for (const Label& label : svg.labels)
      EXPECT_TRUE(label.x > 0 && label.x < width && label.y > 0 && label.y < height);
    EXPECT_LE(width, 1600);
    EXPECT_GE(width, 640);
  }
}

TEST(ViewSvgFigure, LabelAtEndOfAxisIsInsideViewBox) {
  const auto last_label = [](double end) {
    const Svg svg(draw_one(make_timeline("mine", 1, 1, {{timed("0F0", 0, end)}}), TimeUnit::Seconds));
    Label last;
    for (const Label& label : svg.labels) {
      if (label.classes == "l m") last = label;
    }
    return last;
  };
  const Label moved = last_label(0.5);  // the axis ends at 62 + 640, the figure 16 further
  EXPECT_EQ(moved.text, "500 ms");
  EXPECT_NEAR(moved.x, 718 - 6 * 3.3, 0.01);
  const Label centered = last_label(0.504);
  EXPECT_EQ(centered.text, "500 ms");
  EXPECT_NEAR(centered.x, 62 + 640 * 0.5 / 0.504, 0.01);
}

TEST(ViewSvgFigure, SizeMatchesViewBoxExactly) {
  // 9.7 units of 22 / 0.3 each are not a round number.
  schedule::Timeline timeline;
  timeline.placement = schedule::Placement::make(1, 1, schedule::PlacementStyle::Loop);
  timeline.microbatches = 1;
  timeline.ranks = {{{schedule::Action::forward(StageId(0), MicrobatchId(0)), 0, 0.3},
                     {schedule::Action::backward(StageId(0), MicrobatchId(0)), 0.3, 9.7}}};
  const std::string svg = to_svg(draw(std::span(&timeline, 1), TimeUnit::Units));
  std::smatch size;
  ASSERT_TRUE(std::regex_search(
      svg, size, std::regex(R"re(viewBox="0 0 ([^ ]*) ([^"]*)" width="([^"]*)" height="([^"]*)")re")));
  EXPECT_EQ(size[1], size[3]);
  EXPECT_EQ(size[2], size[4]);
  EXPECT_GT(std::stod(size[1]), 9.7 * 22 / 0.3);
}

TEST(ViewSvgFigure, LaterStagesAreLighterWithDarkNumbers) {
  const Svg svg(draw(run(schedule::ScheduleKind::Interleaved1F1B, {2, 5, 4}), TimeUnit::Units));
  std::map<std::string, std::string> classes;
  for (const Rect& rect : svg.rects) {
    if (!rect.title.empty()) classes[rect.title] = rect.classes;
  }
  EXPECT_EQ(classes.at("0F0"), "f");
  EXPECT_EQ(classes.at("2F0"), "f c1");
  EXPECT_EQ(classes.at("4F0"), "f c2");
  EXPECT_EQ(classes.at("6F0"), "f c3");
  EXPECT_EQ(classes.at("8F0"), "f c3");
  EXPECT_EQ(classes.at("9B0"), "b c3");
  for (const char* name : {"c1", "c2", "c3"})
    EXPECT_THAT(svg.source, HasSubstr(std::string(".") + name + "{"));
  EXPECT_THAT(svg.source, Not(HasSubstr(".c4")));
}

//! The fill color of each class in one part of the style sheet.
std::map<std::string, std::string> fills(const std::string& style) {
  std::map<std::string, std::string> found;
  static const std::regex rule(R"re(\.(\w+)\{fill:(#[0-9a-f]+)\})re");
  for (std::sregex_iterator at(style.begin(), style.end(), rule), end; at != end; ++at)
    EXPECT_TRUE(found.emplace((*at)[1], (*at)[2]).second) << (*at)[1] << " has two colors";
  return found;
}

TEST(ViewSvgFigure, EveryKindHasDistinctColorsInLightAndDarkTheme) {
  plan::Costs costs = plan::Costs::uniform(4);
  costs.link.latency = 0.2;
  for (plan::StageCosts& stage : costs.stages) stage.unshard = 0.1;
  std::map<std::string, std::string> colors;
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::ZBVZeroBubble, schedule::ScheduleKind::DualPipeV}) {
    const schedule::Schedule schedule = make_schedule(kind, {2, 2, 6});
    const Svg svg(
        draw(simulate(make_program(schedule, schedule::SendMode::Buffered), costs), TimeUnit::Units));
    const std::size_t dark_part = svg.source.find("@media(prefers-color-scheme:dark)");
    ASSERT_NE(dark_part, std::string::npos);
    const auto light = fills(svg.source.substr(0, dark_part)), dark = fills(svg.source.substr(dark_part));
    for (const Rect& rect : svg.rects) {
      const std::string name = rect.classes.substr(0, rect.classes.find(' '));
      ASSERT_TRUE(light.contains(name) && dark.contains(name)) << rect.classes;
      EXPECT_NE(light.at(name), dark.at(name)) << name;
      if (!rect.title.empty()) colors[name] = light.at(name);
    }
  }
  std::set<std::string> different;
  for (const auto& [name, color] : colors) different.insert(color);
  EXPECT_EQ(different.size(), colors.size());
  EXPECT_GE(colors.size(), 5u);  // F, B, I, W and transfers
}

TEST(ViewSvgFigure, LabelsDoNotOverlap) {
  Drawing drawing = draw(run(schedule::ScheduleKind::ZB1P, {3, 1, 5}, 0.3), TimeUnit::Units);
  add_panel(drawing, run(schedule::ScheduleKind::ZB1P, {3, 1, 5}, 0.3).timeline);
  const Svg svg(drawing);
  // At least 5 units per character and 10 per line, around the anchor given by the class.
  struct Box {
    double left, right, top, bottom;
  };
  std::vector<Box> boxes;
  for (const Label& label : svg.labels) {
    const double length = 5 * static_cast<double>(label.text.size());
    const bool middle = label.classes.ends_with("m") || label.classes.starts_with("n");
    const double left = label.classes.ends_with("r") ? label.x - length : label.x - (middle ? length / 2 : 0);
    boxes.push_back({left, left + length, label.y - 10, label.y});
  }
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      const bool apart = boxes[i].left >= boxes[k].right || boxes[k].left >= boxes[i].right ||
                         boxes[i].top >= boxes[k].bottom || boxes[k].top >= boxes[i].bottom;
      EXPECT_TRUE(apart) << svg.labels[i].text << " and " << svg.labels[k].text;
    }
  }
}

TEST(ViewSvgFigure, EscapesNames) {
  plan::Simulation simulation = run(schedule::ScheduleKind::OneFOneB, {2, 1, 2});
  simulation.timeline.name = "a<b> & c";
  EXPECT_THAT(to_svg(draw(simulation, TimeUnit::Units)), HasSubstr(">a&lt;b&gt; &amp; c: 2 ranks"));
}

TEST(ViewSvgFigure, DrawsEmptyTimeline) {
  schedule::Timeline empty;
  empty.name = "nothing";
  empty.placement = schedule::Placement::make(2, 2, schedule::PlacementStyle::Loop);
  empty.ranks.resize(2);
  const Svg svg(draw(std::span(&empty, 1), TimeUnit::Units));
  EXPECT_EQ(svg.with_class("lane").size(), 2u);
  EXPECT_THAT(svg.source, Not(HasSubstr("nan")));
  EXPECT_THAT(svg.source, Not(HasSubstr("inf")));
  EXPECT_THAT(svg.texts("l m"), ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1"));  // as if it took one unit
}

}  // namespace
}  // namespace penstock::view
