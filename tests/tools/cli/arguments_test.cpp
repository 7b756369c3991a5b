// The tool's command-line parser, as commands use it.
#include "cli/arguments.h"

#include "support/error_message.h"

#include <penstock/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::tool {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Command kCommand{"try", Home::Plan, "a command of the tests", "penstock try"};

enum class Format { Csv, Grid };

// All kinds of options.
struct Options {
  std::string name;
  std::int64_t ranks = 4;
  std::optional<std::int64_t> microbatches;
  double scale = 1.5;
  std::vector<std::string> split;
  bool lowered = false;
  Format format = Format::Csv;
  bool json = false;
  bool ranks_given = false;
};

Options parse(std::vector<std::string> words) {
  Options o;
  Arguments arguments(kCommand, std::move(words));
  arguments.positional("NAME", o.name, "a name");
  arguments.option("--ranks", o.ranks, "how many");
  arguments.option("--microbatches", o.microbatches, "how many");
  arguments.option("--scale", o.scale, "how much");
  arguments.option("--split", o.split, "where");
  arguments.flag("--lowered", o.lowered, "whether");
  arguments.choice("--as", o.format, {{"csv", Format::Csv}, {"grid", Format::Grid}}, "how");
  arguments.parse();
  o.json = arguments.json();
  o.ranks_given = arguments.given("--ranks");
  return o;
}

std::string usage_error(const std::vector<std::string>& words) {
  return test::error_message<UsageError>([&] { parse(words); });
}

TEST(ToolArguments, ReadsEveryKind) {
  const Options o = parse({"1F1B", "--ranks", "8", "--microbatches=16", "--scale", "0.5", "--split", "a,b",
                           "--split", "c", "--lowered", "--as", "grid", "--json"});
  EXPECT_EQ(o.name, "1F1B");
  EXPECT_EQ(o.ranks, 8);
  EXPECT_EQ(o.microbatches, 16);
  EXPECT_EQ(o.scale, 0.5);
  EXPECT_THAT(o.split, ElementsAre("a", "b", "c"));
  EXPECT_TRUE(o.lowered && o.json && o.ranks_given);
  EXPECT_EQ(o.format, Format::Grid);
}

TEST(ToolArguments, KeepsDefaults) {
  const Options o = parse({"GPipe"});
  EXPECT_EQ(o.ranks, 4);
  EXPECT_EQ(o.microbatches, std::nullopt);
  EXPECT_EQ(o.format, Format::Csv);
  EXPECT_FALSE(o.lowered || o.json || o.ranks_given);
}

TEST(ToolArguments, ListOptionDoesNotConsumePositional) {
  const Options o = parse({"--split", "a,b", "GPipe"});
  EXPECT_EQ(o.name, "GPipe");
  EXPECT_THAT(o.split, ElementsAre("a", "b"));
}

TEST(ToolArguments, RejectsInvalidValues) {
  EXPECT_THAT(usage_error({}), HasSubstr("NAME is required"));
  EXPECT_THAT(usage_error({"a", "--ranks", "four"}), HasSubstr("--ranks"));
  EXPECT_THAT(usage_error({"a", "--ranks", "4x"}), HasSubstr("--ranks"));
  EXPECT_THAT(usage_error({"a", "--ranks"}), HasSubstr("--ranks"));
  EXPECT_THAT(usage_error({"a", "--rank", "4"}), HasSubstr("did you mean --ranks?"));
  EXPECT_THAT(usage_error({"a", "b"}), HasSubstr("try does not take 'b'"));
  EXPECT_THAT(usage_error({"a", "--as", "gird"}), HasSubstr("did you mean grid?"));
  EXPECT_THAT(usage_error({"a", "--as", "nothing"}), HasSubstr("one of csv, grid"));
}

TEST(ToolArguments, HelpShowsChoicesDefaultsAndExample) {
  testing::internal::CaptureStdout();
  EXPECT_THROW(parse({"--help"}), HelpPrinted);
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_THAT(help, HasSubstr("csv|grid"));
  EXPECT_THAT(help, HasSubstr("=4"));
  EXPECT_THAT(help, HasSubstr("Example:\n  penstock try\n"));
}

std::vector<std::string> rest_of(std::vector<std::string> words) {
  std::int64_t ranks = 0;
  std::vector<std::string> program;
  Arguments arguments(kCommand, std::move(words));
  arguments.option("--ranks", ranks, "how many");
  arguments.rest("PROGRAM", program, "what to start");
  arguments.parse();
  EXPECT_EQ(ranks, 2);
  return program;
}

TEST(ToolArguments, PassesRemainingArgumentsToProgram) {
  EXPECT_THAT(rest_of({"--ranks", "2", "--", "prog", "--lr", "3", "-v"}),
              ElementsAre("prog", "--lr", "3", "-v"));
  EXPECT_THAT(rest_of({"--ranks", "2", "prog", "--lr", "3", "--ranks", "9"}),
              ElementsAre("prog", "--lr", "3", "--ranks", "9"));
  EXPECT_THAT(rest_of({"--ranks", "2", "prog", "--", "x"}), ElementsAre("prog", "--", "x"));
  EXPECT_ERROR(rest_of({"--rank", "2", "prog"}), UsageError, "--rank");
}

}  // namespace
}  // namespace penstock::tool
