// What the commands print on a terminal: colors and progress bars.
#include "support/pseudo_terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

const std::vector<std::string> kGrid{PENSTOCK_TOOL,    "schedule", "1F1B", "--ranks", "2",
                                     "--microbatches", "2",        "--as", "grid"};
// The start of every color; moving the cursor has other codes.
const std::string kColor = "\x1b\\[[0-9;]*m";

std::vector<std::string> training(const std::vector<std::string>& more) {
  std::vector<std::string> words{PENSTOCK_TOOL, "train",   "--steps=2", "--layers=1", "--width=8",
                                 "--heads=1",   "--seq=4", "--batch=4", "--sample=0"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(ToolTerminal, ColorsGridOnlyWhereWanted) {
  const Outcome colored = run_on_terminal(kGrid, {"TERM=xterm", "NO_COLOR="});
  EXPECT_EQ(colored.code, 0);
  EXPECT_THAT(colored.out, AllOf(ContainsRegex(kColor), HasSubstr("rank 1")));
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{"TERM=xterm", "NO_COLOR=1"}, {"TERM=dumb", "NO_COLOR="}}) {
    const Outcome plain = run_on_terminal(kGrid, settings);
    EXPECT_EQ(plain.code, 0);
    EXPECT_THAT(plain.out, AllOf(Not(ContainsRegex(kColor)), HasSubstr("F0"))) << settings[0];
  }
  EXPECT_THAT(run_program(kGrid, {"TERM=xterm", "NO_COLOR="}).out, Not(HasSubstr("\x1b")));
}

TEST(ToolTerminal, GridFitsWidthWithoutColorsToo) {
  const std::vector<std::string> wide{PENSTOCK_TOOL,    "schedule", "1F1B", "--ranks", "2",
                                      "--microbatches", "64",       "--as", "grid"};
  std::istringstream lines(run_on_terminal(wide, {"TERM=xterm", "NO_COLOR=1"}).out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110U) << line;
}

// All commands that write text of their own.
TEST(ToolTerminal, NoCommandUsesColorsWithNoColor) {
  const std::string model = PENSTOCK_SOURCE_DIR "/tests/train/archives/language.pt2";
  const std::vector<std::vector<std::string>> commands{
      {"--help"},
      {"train", "--help"},
      {"unknown"},
      {"schedule", "--list"},
      {"simulate", "1F1B", "ZB1P", "--ranks", "2", "--microbatches", "4"},
      {"simulate", "1F1B", "--ranks", "2", "--microbatches", "4", "--as", "grid"},
      {"plan", "--ranks", "2", "--microbatches", "4", "--schedules", "1F1B"},
      {"inspect", model, "--stages", "2"},
      {"train", "--dry-run"},
      {"version"}};
  for (std::vector<std::string> words : commands) {
    words.insert(words.begin(), PENSTOCK_TOOL);
    EXPECT_THAT(run_on_terminal(words, {"TERM=xterm", "NO_COLOR=1"}).out, Not(ContainsRegex(kColor)))
        << words[1];
  }
}

TEST(ToolTerminal, ProgressBarHasNoColorsAndQuietHasNoBar) {
  const Outcome usual = run_on_terminal(training({}), {"TERM=xterm", "NO_COLOR=1"});
  EXPECT_EQ(usual.code, 0) << usual.out;
  EXPECT_THAT(usual.out, AllOf(HasSubstr("[=="), HasSubstr("step 2/2"), Not(ContainsRegex(kColor))));
  const Outcome quiet = run_on_terminal(training({"-q"}), {"TERM=xterm"});
  EXPECT_EQ(quiet.code, 0) << quiet.out;
  EXPECT_THAT(quiet.out, AllOf(HasSubstr(" at step "), Not(HasSubstr("step 1/")), Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace penstock::test
