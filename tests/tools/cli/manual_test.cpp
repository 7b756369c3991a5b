// The manual pages that tools/dev/man.py makes from the help: complete, and valid for man and groff.
#include "support/program.h"

#include <penstock/version.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

//! Writes all pages once.
const TempDir& pages() {
  static const TempDir dir;
  static const Outcome outcome =
      run_program({"python3", PENSTOCK_SOURCE_DIR "/tools/dev/man.py", PENSTOCK_TOOL, dir.path()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return dir;
}

std::vector<std::string> page_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(pages().path())) files.push_back(entry.path());
  return files;
}

//! All matches of the first group.
std::set<std::string> found_in(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) found.insert((*it)[1]);
  return found;
}

TEST(ToolManual, HasPageForEveryCommand) {
  const std::string overview = slurp(pages() / "penstock.1");
  const std::string help = penstock({"--help"}).out;
  EXPECT_THAT(overview, AllOf(StartsWith(".TH PENSTOCK 1 \"\" \"penstock " + version() + "\""),
                              HasSubstr("Exit code: 0 success")));
  const std::set<std::string> commands = found_in(help.substr(help.find("Commands:\n")), "\n  ([a-z]+) ");
  EXPECT_GE(commands.size(), 14U);
  std::set<std::string> expected{pages() / "penstock.1"};
  for (const std::string& command : commands) {
    expected.insert(pages() / ("penstock-" + command + ".1"));
    EXPECT_THAT(overview, HasSubstr("\n\\fBpenstock\\-" + command + "\\fR(1)\n")) << command;
  }
  EXPECT_THAT(page_files(), testing::UnorderedElementsAreArray(expected));
}

// `__complete` asks the parser itself, so the options do not come from the text that man.py reads.
TEST(ToolManual, DescribesEveryOption) {
  int options = 0;
  for (const std::string& file : page_files()) {
    const std::string name = std::filesystem::path(file).stem();
    if (name == "penstock") continue;
    const std::string command = name.substr(name.find('-') + 1), page = slurp(file);
    const std::set<std::string> in_page =
        found_in(page, "\n\\.TP\n[^\n]*\\\\fB\\\\-\\\\-([^\\\\]+(\\\\-[^\\\\]+)*)");
    std::set<std::string> expected;
    for (const std::string& option :
         found_in(penstock({"__complete", command, "--"}).out, "--([a-z0-9-]+)")) {
      expected.insert(std::regex_replace(option, std::regex("-"), "\\-"));
      ++options;
    }
    EXPECT_EQ(in_page, expected) << command;
    EXPECT_THAT(page, AllOf(HasSubstr(".SH SYNOPSIS\n"), HasSubstr(".SH EXAMPLE\n.nf\npenstock " + command)))
        << command;
  }
  EXPECT_GT(options, 120);
}

TEST(ToolManual, KeepsDescriptionsDefaultsAndChoices) {
  const std::string train = slurp(pages() / "penstock-train.1");
  for (const char* text :
       {"\n.TP\n\\fB\\-q\\fR, \\fB\\-\\-quiet\\fR\nprint only warnings, errors and the result\n",
        "\n.TP\n\\fB\\-\\-optimizer\\fR \\fIadamw|adam|sgd|adagrad|rmsprop=adamw\\fR\nthe optimizer\n",
        "\n.TP\n\\fB\\-\\-prompt\\fR \\fITEXT=\"\\en\"\\fR\nprompt for the generated text\n",
        "\n.TP\n\\fB\\-\\-lr\\-schedule\\fR "
        "\\fIconstant|linear|cosine|wsd|polynomial|step|one_cycle=constant\\fR\nlearning rate after the "
        "warmup\n",
        "\n.TP\n\\fIMODEL.pt2\\fR TEXT\nan archive written by torch.export.save"})
    EXPECT_THAT(train, HasSubstr(text));
}

TEST(ToolManual, IsValidForGroff) {
  if (!has_program("groff")) GTEST_SKIP() << "groff is not installed";
  for (const std::string& file : page_files()) {
    const Outcome outcome = run_program({"groff", "-man", "-ww", "-z", "-Tascii", file});
    EXPECT_EQ(outcome.code, 0) << file;
    EXPECT_THAT(outcome.err, IsEmpty()) << file;
  }
}

TEST(ToolManual, IsShownByMan) {
  if (!has_program("man") || !has_program("groff")) GTEST_SKIP() << "man or groff is not installed";
  for (const std::string& file : page_files()) {
    const Outcome outcome =
        run_program({"man", "--warnings", "-E", "UTF-8", "-l", file}, {"MANWIDTH=80", "MANPAGER=cat"});
    EXPECT_EQ(outcome.code, 0) << file;
    EXPECT_THAT(outcome.err, IsEmpty()) << file;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("NAME\n"), HasSubstr("SYNOPSIS\n"))) << file;
  }
}

}  // namespace
}  // namespace penstock::test
