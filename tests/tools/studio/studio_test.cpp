// `penstock studio` through the real program and real sockets: what it serves, what it refuses, and how it
// ends.
#include "client.h"
#include "support/program.h"
#include "support/temp_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <regex>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kStubPage = "<!doctype html><title>stub</title>\n" + std::string(700'000, 'x') + "end";

//! A running server with the stub page.
class ToolStudio : public testing::Test {
 protected:
  ToolStudio() : page_(dir_ / "page.html"), studio_(words(page_)) {
    const std::regex address("http://127\\.0\\.0\\.1:(\\d+)/");
    std::smatch match;
    std::string out;
    while (!std::regex_search(out, match, address)) {
      if (studio_.ended()) throw std::runtime_error("penstock studio ended: " + studio_.err());
      sched_yield();
      out = studio_.out();
    }
    port_ = std::stoi(match[1]);
  }
  ~ToolStudio() override {
    if (studio_.ended()) return;
    kill(studio_.pid(), SIGKILL);
    studio_.finish();
  }

  std::vector<std::string> words(const std::string& page) {
    std::ofstream(page, std::ios::binary) << kStubPage;
    return {PENSTOCK_TOOL, "studio", "--port", "0", "--no-open", "--page", page};
  }

  std::string own_host() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string get(const std::string& target, const std::string& host) const {
    return exchange("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  }
  std::string exchange(const std::string& request) const {
    Client client(port_);
    EXPECT_TRUE(client.connected());
    EXPECT_TRUE(client.write(request));
    return client.read_all();
  }

  TempDir dir_;
  std::string page_;
  Program studio_;
  int port_ = 0;
};

TEST_F(ToolStudio, ServesOnlyPage) {
  for (const char* target : {"/", "/index.html", "/?x=1"}) {
    const std::string response = get(target, own_host());
    EXPECT_THAT(response, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(response, HasSubstr("\r\nContent-Length: " + std::to_string(kStubPage.size()) + "\r\n"));
    EXPECT_TRUE(response.ends_with("\r\n\r\n" + kStubPage)) << response.substr(0, 600);
  }
  for (const char* target : {"/page.html", "/../page.html", "/etc/passwd", "//", "http://localhost/x"})
    EXPECT_THAT(get(target, own_host()), StartsWith("HTTP/1.1 404 ")) << target;
}

TEST_F(ToolStudio, AnswersHeadWithoutBody) {
  const std::string response = exchange("HEAD / HTTP/1.1\r\nHost: " + own_host() + "\r\n\r\n");
  EXPECT_THAT(response, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(response, EndsWith("\r\n\r\n"));
}

// A site that resolves its own name to 127.0.0.1 sends that name.
TEST_F(ToolStudio, RejectsForeignHosts) {
  const std::string port = std::to_string(port_);
  EXPECT_THAT(get("/", "LocalHost:" + port), StartsWith("HTTP/1.1 200 "));
  const std::vector<std::string> foreign = {"example.com", "example.com:" + port,           "127.0.0.1",
                                            "127.0.0.1:1", "localhost.example.com:" + port, ""};
  for (const std::string& host : foreign) EXPECT_THAT(get("/", host), StartsWith("HTTP/1.1 403 ")) << host;
  EXPECT_THAT(exchange("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(exchange("GET / HTTP/1.1\r\nHost: " + own_host() + "\r\nHost: example.com\r\n\r\n"),
              StartsWith("HTTP/1.1 400 "));
}

TEST_F(ToolStudio, RejectsOtherMethodsAndMalformedRequests) {
  EXPECT_THAT(exchange("POST / HTTP/1.1\r\nHost: " + own_host() + "\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  for (const std::string request :
       {"nonsense\r\n\r\n", "GET /\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n", "\r\n\r\n", "GET / HTTP/2.0\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n"})
    EXPECT_THAT(exchange(request), StartsWith("HTTP/1.1 400 ")) << request;
}

TEST_F(ToolStudio, LimitsRequestSize) {
  const std::string head = "GET / HTTP/1.1\r\nHost: " + own_host() + "\r\nX: ";
  EXPECT_THAT(exchange(head + std::string(10'000, 'a') + "\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  Client client(port_);
  ASSERT_TRUE(client.write(head));
  const std::string block(1 << 14, 'a');
  // The server reads on after its response. If it closed, the rest would reset the connection.
  for (int i = 0; i < 1024; ++i) ASSERT_TRUE(client.write(block));  // more than any buffer holds
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 431 "));
}

TEST_F(ToolStudio, AnswersWhileOtherConnectionsAreIdle) {
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 20; ++i) {
    idle.push_back(std::make_unique<Client>(port_));
    ASSERT_TRUE(idle.back()->write("GET / HT"));
  }
  EXPECT_THAT(get("/", own_host()), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ToolStudio, ListensOnlyOnLoopback) {
  EXPECT_TRUE(Client(port_).connected());
  // Linux routes all of 127.0.0.0/8 to the loopback interface, so a server on 0.0.0.0 would accept this.
  EXPECT_FALSE(Client(port_, "127.0.0.2").connected());
}

TEST_F(ToolStudio, SignalsStopItCleanly) {
  Client idle(port_);
  kill(studio_.pid(), SIGINT);
  const Outcome outcome = studio_.finish();
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_FALSE(Client(port_).connected());
}

TEST_F(ToolStudio, PortInUseIsAnErrorWithHint) {
  const Outcome outcome = penstock({"studio", "--port", std::to_string(port_), "--no-open", "--page", page_});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("port " + std::to_string(port_) + " is in use"));
  EXPECT_THAT(outcome.err, HasSubstr("--port 0"));
}

TEST(ToolStudioBrowser, OpensAddress) {
  const TempDir dir;
  std::ofstream(dir / "page.html") << "page";
  std::ofstream(dir / "xdg-open")
      << "#!/bin/sh\necho \"$1\" >\"$OPENED.part\" && mv \"$OPENED.part\" \"$OPENED\"\n";
  chmod((dir / "xdg-open").c_str(), 0700);
  const std::vector<std::string> settings = {"DISPLAY=:none", "PATH=" + dir.path() + ":/usr/bin:/bin",
                                             "OPENED=" + (dir / "opened")};
  const std::vector<std::string> words = {PENSTOCK_TOOL, "studio", "--port",
                                          "0",           "--page", dir / "page.html"};
  Program studio(words, settings);
  while (slurp(dir / "opened").empty() && !studio.ended()) sched_yield();
  kill(studio.pid(), SIGTERM);
  const Outcome outcome = studio.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::string opened = slurp(dir / "opened");
  ASSERT_FALSE(opened.empty());
  opened.pop_back();
  EXPECT_THAT(outcome.out, HasSubstr(" " + opened + " "));
  EXPECT_THAT(opened, StartsWith("http://127.0.0.1:"));
}

TEST(ToolStudioOutput, WritesPage) {
  const TempDir dir;
  std::ofstream(dir / "page.html", std::ios::binary) << kStubPage;
  const Outcome outcome = penstock({"studio", "--page", dir / "page.html", "--output", dir / "copy.html"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(slurp(dir / "copy.html") == kStubPage);
}

TEST(ToolStudioOutput, ReportsMissingPage) {
  const Outcome outcome = penstock({"studio", "--output", "-"});
  if (outcome.code == 0) {  // built with the playground
    EXPECT_THAT(outcome.out, HasSubstr("<title>Penstock playground</title>"));
    return;
  }
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("built without the playground"));
  EXPECT_THAT(outcome.err, HasSubstr("./dev playground"));
}

TEST(ToolStudioOutput, RejectsInvalidPorts) {
  for (const char* port : {"-1", "65536"}) {
    const Outcome outcome = penstock({"studio", "--no-open", "--port", port});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("--port must be between 0 and 65535"));
  }
}

}  // namespace
}  // namespace penstock::test
