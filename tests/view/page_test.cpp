// The HTML page in a real browser: it opens, draws every box, reacts to the pointer, and logs no error.
#include "support/temp_dir.h"
#include "view/drawings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

namespace penstock::view {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

//! Fails once, before any test runs, if there is no browser.
class Browser : public testing::Environment {
 public:
  void SetUp() override {
    ASSERT_EQ(std::system("command -v chromium >/dev/null"), 0)
        << "chromium is needed (./dev test installs it)";
  }
};
[[maybe_unused]] const testing::Environment* const kBrowser = testing::AddGlobalTestEnvironment(new Browser);

struct Page {
  std::string dom;  //!< after the scripts have run
  std::string log;  //!< output of the browser

  //! The value of an attribute of #state, or of the body, to which scripts of tests write.
  std::string value(const std::string& name) const {
    std::smatch match;
    const std::regex pattern("data-" + name + "=\"([^\"]*)\"");
    return std::regex_search(dom, match, pattern) ? match[1].str() : "(no " + name + ")";
  }
};

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

//! Opens the page with an additional script, and returns the resulting DOM and log.
Page open_page(std::string html, const std::string& script = "") {
  const test::TempDir temporary;
  const fs::path dir = temporary.path();
  html.insert(html.rfind("</body>"), "<script>" + script + "</script>\n");
  std::ofstream(dir / "page.html", std::ios::binary) << html;
  const std::string command =
      "chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
      "--disable-background-networking "
      "--disable-component-update --disable-sync --enable-logging=stderr --window-size=1200,800 "
      "--virtual-time-budget=4000 "
      "--user-data-dir='" +
      (dir / "profile").string() + "' --dump-dom 'file://" + (dir / "page.html").string() + "' >'" +
      (dir / "dom").string() + "' 2>'" + (dir / "log").string() + "'";
  const int status = std::system(command.c_str());
  Page page{contents(dir / "dom"), contents(dir / "log")};
  EXPECT_EQ(status, 0) << page.log;
  EXPECT_EQ(page.log.find("CONSOLE"), std::string::npos) << page.log;
  EXPECT_EQ(page.value("errors"), "");
  EXPECT_EQ(page.value("ready"), "yes");
  return page;
}

//! A scripted pointer: `point(type, x, y)` on the first canvas, with x and y in its CSS pixels.
const std::string kPointer = R"js(
  const canvas = document.querySelector("canvas");
  function point(type, x, y, more = {}) {
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new MouseEvent(type, { clientX: box.left + x, clientY: box.top + y, bubbles: true, ...more }));
  }
  const report = (name, value) => { document.body.dataset[name] = value; };
)js";

TEST(ViewPage, DrawsEveryBoxOfSmallSchedule) {
  const Page page =
      open_page(to_html(draw(run(schedule::ScheduleKind::OneFOneB, {4, 1, 8}), TimeUnit::Units)));
  EXPECT_EQ(page.value("boxes"), "64");  // 4 ranks x 8 microbatches x F and B
  EXPECT_EQ(page.value("drawn"), "64");
  EXPECT_THAT(page.dom, HasSubstr("1F1B: 4 ranks, 4 stages, 8 microbatches"));
}

TEST(ViewPage, HoverShowsActionAndTimes) {
  // The step takes 33 units; rank 0 starts with 0F0 from 0 to 1, and the gutter is 64 pixels wide.
  const Page page = open_page(
      to_html(draw(run(schedule::ScheduleKind::OneFOneB, {4, 1, 8}), TimeUnit::Units)), kPointer + R"js(
    const unit = (canvas.clientWidth - 64 - 8) / 33;
    const tip = document.getElementById("tip");
    point("mousemove", 64 + 0.5 * unit, 24 + 10);
    report("first", tip.hidden ? "hidden" : tip.textContent);
    point("mousemove", 64 + 11 * unit, 24 + 10);
    report("second", tip.textContent);
    point("mousemove", 64 + 7 * unit, 24 + 10);
    report("gap", tip.hidden ? "hidden" : tip.textContent);
  )js");
  EXPECT_THAT(page.value("first"), HasSubstr("0F0"));
  EXPECT_THAT(page.value("first"), HasSubstr("rank 0, stage 0, microbatch 0"));
  EXPECT_THAT(page.value("first"), HasSubstr("0 to 1  (1)"));
  EXPECT_THAT(page.value("second"), HasSubstr("0B0"));
  EXPECT_THAT(page.value("second"), HasSubstr("10 to 12  (2)"));
  EXPECT_EQ(page.value("gap"), "hidden");
}

TEST(ViewPage, SupportsZoomMicrobatchHighlightAndTheme) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::DualPipeV, {4, 2, 10}, 0.2);
  const Page page = open_page(to_html(draw(simulation, TimeUnit::Units)), kPointer + R"js(
    const state = document.getElementById("state");
    const before = getComputedStyle(document.body).backgroundColor;
    document.getElementById("theme").click();
    report("themed", getComputedStyle(document.body).backgroundColor !== before);
    document.getElementById("show-critical").click();
    document.getElementById("zoom-in").click();
    point("click", 70, 30);
    canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -1, ctrlKey: true, clientX: 300, clientY: 100, cancelable: true }));
    penstock.drawNow();
    report("span", Number(state.dataset.to) - Number(state.dataset.from));
    report("followed", state.dataset.follow);
    document.getElementById("fit").click();
    penstock.drawNow();
    report("fitted", state.dataset.from + " " + state.dataset.to);
  )js");
  EXPECT_EQ(page.value("themed"), "true");
  EXPECT_EQ(page.value("followed").size(), 1u);
  EXPECT_LT(std::stod(page.value("span")), simulation.step_time * 0.6);
  EXPECT_EQ(page.value("fitted"), "0 " + page.value("end"));
  EXPECT_NE(page.value("messages"), "0");
}

TEST(ViewPage, ShowsPredictedNextToMeasuredTimeline) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::ZB1P, {3, 1, 6}, 0.1);
  Drawing drawing = draw(simulation, TimeUnit::Seconds);
  schedule::Timeline measured = simulation.timeline;
  measured.source = schedule::TimelineSource::Measured;
  for (auto& rank : measured.ranks) {
    for (schedule::TimedAction& timed : rank) timed.start *= 1.1, timed.end *= 1.1;
  }
  add_panel(drawing, measured);
  const Page page = open_page(to_html(drawing));
  EXPECT_THAT(page.dom, HasSubstr(">predicted<"));
  EXPECT_THAT(page.dom, HasSubstr(">measured<"));
  EXPECT_EQ(page.value("boxes"), std::to_string(2 * 3 * 6 * 3));
}

TEST(ViewPage, NamesFactsIdleTimeAndUnit) {
  Drawing drawing = draw(run(schedule::ScheduleKind::OneFOneB, {2, 1, 4}), TimeUnit::Seconds);
  drawing.facts = {{"model", "a <GPT>"}, {"step", "12"}};
  const Page page = open_page(to_html(drawing));
  for (const char* text : {"model <b>a &lt;GPT&gt;</b>", "step <b>12</b>", "</i>idle<", "time in seconds"})
    EXPECT_THAT(page.dom, HasSubstr(text));
}

TEST(ViewPage, WorksByTouch) {
  // The step takes 33 units. Two fingers that move apart to twice their distance show half of it; then one
  // finger moves by half of the width. Units have the same width everywhere, so a finger stays on its time.
  const Page page = open_page(
      to_html(draw(run(schedule::ScheduleKind::OneFOneB, {4, 1, 8}), TimeUnit::Units)), kPointer + R"js(
    penstock.drawNow();  // with the width that a scroll bar leaves
    const state = document.getElementById("state"), box = canvas.getBoundingClientRect();
    const width = canvas.clientWidth - 64 - 8;
    function touch(type, xs) {
      const touches = xs.map((x, i) => new Touch({ identifier: i, target: canvas, clientX: box.left + 64 + x * width, clientY: box.top + 40 }));
      canvas.dispatchEvent(new TouchEvent(type, { touches, changedTouches: touches, bubbles: true, cancelable: true }));
    }
    touch("touchstart", [0.4, 0.6]);
    touch("touchmove", [0.3, 0.7]);
    touch("touchend", []);
    penstock.drawNow();
    report("zoomed", Number(state.dataset.from).toFixed(2) + " " + Number(state.dataset.to).toFixed(2));
    touch("touchstart", [0.2]);
    touch("touchmove", [0.3]);
    penstock.drawNow();
    report("panned", Number(state.dataset.from).toFixed(2) + " " + Number(state.dataset.to).toFixed(2));
  )js");
  EXPECT_EQ(page.value("zoomed"), "8.25 24.75");
  EXPECT_EQ(page.value("panned"), "6.60 23.10");
}

TEST(ViewPage, ShowsComparedSchedulesWithTheirOwnStages) {
  const plan::Simulation one = run(schedule::ScheduleKind::OneFOneB, {4, 1, 8});
  const plan::Simulation two = run(schedule::ScheduleKind::LoopedBFS, {4, 3, 4});
  const plan::Simulation three = run(schedule::ScheduleKind::GPipe, {2, 1, 4});
  const std::array<const plan::Simulation*, 3> all{&one, &two, &three};
  const Page page = open_page(to_html(draw_comparison(all, TimeUnit::Units)));
  EXPECT_EQ(page.value("boxes"), std::to_string(4 * 8 * 2 + 12 * 4 * 2 + 2 * 4 * 2));
  EXPECT_EQ(page.value("drawn"), page.value("boxes"));
  EXPECT_THAT(page.dom, HasSubstr(">LoopedBFS: 4 ranks, 12 stages, 4 microbatches<"));
  EXPECT_THAT(page.dom, HasSubstr("lighter: later stages of a rank"));
}

TEST(ViewPage, StaysResponsiveWith64RanksAnd512Microbatches) {
  const plan::Simulation simulation = run(schedule::ScheduleKind::InterleavedZeroBubble, {64, 2, 512});
  const Page page = open_page(to_html(draw(simulation, TimeUnit::Units)), kPointer + R"js(
    point("mousemove", 700, 60);
    report("found", document.getElementById("tip").textContent);
    for (let i = 0; i < 12; ++i) document.getElementById("zoom-in").click();
    penstock.drawNow();
  )js");
  EXPECT_EQ(page.value("boxes"), std::to_string(64 * 2 * 512 * 3));
  // Invisible boxes are not drawn: zoomed in, there are far fewer.
  EXPECT_LT(std::stol(page.value("drawn")), 20'000);
  EXPECT_GT(std::stol(page.value("drawn")), 64);
  EXPECT_THAT(page.value("found"), HasSubstr("rank"));
}

}  // namespace
}  // namespace penstock::view
