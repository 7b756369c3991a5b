// `--dashboard`: the endpoints during a real run, and the page in a browser.
#include "tools/studio/client.h"
#include "tools/train/small_gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <regex>
#include <thread>

namespace penstock::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

//! A run with a dashboard, which ends with the test.
class ToolTrainDashboard : public testing::Test {
 protected:
  ToolTrainDashboard()
      : program_(
            small_gpt({"--steps=1000000", "--eval-every=2", "--dashboard", "--log-json=" + (dir_ / "log")})) {
    const std::regex address("the dashboard is at http://127\\.0\\.0\\.1:(\\d+)/");
    std::smatch match;
    std::string out;
    while (!std::regex_search(out, match, address) && !program_.ended()) {
      std::this_thread::yield();
      out = program_.out();
    }
    if (!match.empty()) port_ = std::stoi(match[1]);
  }
  ~ToolTrainDashboard() override {
    kill(program_.pid(), SIGINT);
    program_.finish();
  }

  std::string get(const std::string& target, std::string host = {}) const {
    if (host.empty()) host = "127.0.0.1:" + std::to_string(port_);
    Client client(port_);
    EXPECT_TRUE(client.connected());
    EXPECT_TRUE(client.write("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"));
    return client.read_all();
  }
  nlohmann::json data(const std::string& query = "") const {
    const std::string answer = get("/data.json" + query);
    return nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n") + 4));
  }
  //! Waits until the page has this many steps and a timeline.
  nlohmann::json wait_for_steps(std::size_t count) {
    nlohmann::json now = data();
    while (!program_.ended() && (now.at("steps").size() < count || now.at("timelines") == 0)) now = data();
    return now;
  }

  TempDir dir_;
  Program program_;
  int port_ = 0;
};

TEST_F(ToolTrainDashboard, ServesNumbersOfLogAndTimeline) {
  ASSERT_GT(port_, 0) << program_.err();
  const nlohmann::json now = wait_for_steps(4);
  // A step is on the page before its validation, and in the log after it.
  auto log = log_of(dir_ / "log");
  while (!program_.ended() && log.size() < now.at("steps").size()) log = log_of(dir_ / "log");
  ASSERT_GE(log.size(), now.at("steps").size());
  for (auto& line : log) line.erase("validation_loss");  // the page has it apart
  for (std::size_t i = 0; i < now.at("steps").size(); ++i) EXPECT_EQ(now.at("steps")[i], log[i]);
  EXPECT_EQ(now.at("validations").at(0).at("step"), 2);
  EXPECT_EQ(now.at("info").at("steps"), 1'000'000);
  // A later request gets only the new steps; one for an unknown generation gets everything.
  const std::string generation = std::to_string(now.at("generation").get<int>());
  const nlohmann::json later = data("?generation=" + generation + "&from=3");
  EXPECT_EQ(later.at("from"), 3);
  EXPECT_EQ(later.at("steps").at(0), log[3]);
  EXPECT_EQ(data("?generation=99&from=3").at("steps").at(0), log[0]);
  const std::string svg = get("/timeline.svg");
  EXPECT_THAT(svg, HasSubstr("Content-Type: image/svg+xml"));
  EXPECT_THAT(svg, HasSubstr("<svg xmlns"));
  EXPECT_THAT(svg, HasSubstr(">rank 1<"));
  // No line of the dashboard reaches the terminal.
  EXPECT_EQ(program_.out().find('\x1d'), std::string::npos);
}

TEST_F(ToolTrainDashboard, ServesOwnHostOnly) {
  ASSERT_GT(port_, 0) << program_.err();
  EXPECT_THAT(get("/"), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(get("/data.json", "example.com"), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(get("/etc/passwd"), StartsWith("HTTP/1.1 404"));
  const std::string page = get("/");
  for (const char* external : {"https://", "src=\"http", "@import"})
    EXPECT_EQ(page.find(external), std::string::npos);
}

TEST_F(ToolTrainDashboard, PageShowsChartsInBrowser) {
  ASSERT_GT(port_, 0) << program_.err();
  if (!has_program("chromium")) GTEST_SKIP() << "chromium is not installed";
  wait_for_steps(4);
  const Outcome browser =
      run_program({"chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                   "--disable-sync", "--disable-background-networking", "--window-size=420,900",
                   "--virtual-time-budget=3000", "--user-data-dir=" + (dir_ / "profile"), "--dump-dom",
                   "http://127.0.0.1:" + std::to_string(port_) + "/"});
  EXPECT_EQ(browser.code, 0) << browser.err;
  EXPECT_THAT(browser.out, HasSubstr("data-ready=\"yes\""));
  EXPECT_THAT(browser.out, HasSubstr("data-errors=\"\""));
  for (const char* text : {"learning rate", "gradient norm", "tokens/s", "peak memory per rank", "rank 1",
                           "validation", "<path d=\"M", "/timeline.svg?"})
    EXPECT_THAT(browser.out, HasSubstr(text));
}

}  // namespace
}  // namespace penstock::test
