// `penstock train` as people call it: over processes, through the real binaries.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// A run of seconds; later words win over these.
std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> words{"train",     "--steps=4", "--layers=2", "--width=16",
                                 "--heads=2", "--seq=8",   "--batch=8",  "--sample=20"};
  for (const std::string& word : more) {
    const std::string name = word.substr(0, word.find('='));
    std::erase_if(words, [&](const std::string& old) { return old.starts_with(name + "="); });
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The value of a field, as text.
std::string field(const std::string& json, const std::string& name) {
  const auto at = json.find("\"" + name + "\":");
  if (at == std::string::npos) return "";
  const auto from = at + name.size() + 3;
  return json.substr(from, json.find_first_of(",}", from) - from);
}

TEST(TrainCommand, TrainsAndWritesWhatItIsAskedFor) {
  const TempDir dir;
  const Outcome outcome =
      penstock(small({"--log-json=" + (dir / "log"), "--timeline=" + (dir / "t.html"),
                      "--trace=" + (dir / "t.json"), "--profile=" + (dir / "costs.toml")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("steps = 4\n"), HasSubstr("step 4/4  loss "), HasSubstr("a sample of text:\n"),
                    HasSubstr("timeline: " + (dir / "t.html")), testing::Not(HasSubstr("\x1e"))));
  const auto log = lines_of(slurp(dir / "log"));
  ASSERT_EQ(log.size(), 4U);
  for (const char* name : {"loss", "grad_norm", "seconds", "tokens_per_second", "bubble"})
    EXPECT_NE(field(log[3], name), "") << name;
  EXPECT_THAT(log[3], AllOf(StartsWith("{\"step\":4,"), HasSubstr("\"peak_memory\":[")));
  EXPECT_LT(std::stod(field(log[3], "loss")), std::stod(field(log[0], "loss")));
  EXPECT_THAT(slurp(dir / "t.html"), AllOf(HasSubstr("<html"), HasSubstr("measured"), HasSubstr("redicted")));
  EXPECT_THAT(slurp(dir / "t.json"), HasSubstr("traceEvents"));
  // The planner reads the costs that were measured.
  const Outcome plan =
      penstock({"plan", "--ranks", "2", "--microbatches", "4", "--costs", dir / "costs.toml"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("1F1B"));
}

TEST(TrainCommand, PutsWhatIsNotNamedIntoTheOutputDirectory) {
  const TempDir dir;
  const Outcome outcome = penstock(small({"--output=" + (dir / "a/b"), "--sample=0"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("checkpoint: " + (dir / "a/b/checkpoint/step-00000004")),
                                 HasSubstr("timeline: " + (dir / "a/b/timeline.html"))));
  EXPECT_EQ(lines_of(slurp(dir / "a/b/log.jsonl")).size(), 4U);
  // A second run there would mix two curves.
  const Outcome again = penstock(small({"--output=" + (dir / "a/b"), "--sample=0"}));
  EXPECT_NE(again.code, 0);
  EXPECT_THAT(again.err, HasSubstr("--resume"));
}

TEST(TrainCommand, TwoRunsOfASeedAreBitwiseTheSame) {
  const TempDir dir;
  std::vector<std::vector<std::string>> losses;
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(penstock(small({"--log-json=" + (dir / name), "--json"})).code, 0);
    losses.emplace_back();
    for (const std::string& line : lines_of(slurp(dir / name))) losses.back().push_back(field(line, "loss"));
  }
  EXPECT_EQ(losses[0].size(), 4U);
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(TrainCommand, TakesSettingsFromAFileAndTheCommandLineWins) {
  const TempDir dir;
  std::ofstream(dir / "c.toml")
      << "steps = 9\n[gpt]\nwidth = 16\nlayers = 2\nheads = 2\nseq = 8\nbatch = 8\ngrad_clip = 1\n";
  const Outcome outcome = penstock({"train", "--config", dir / "c.toml", "--steps", "2", "--ranks", "1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("steps = 2\n"), HasSubstr("grad-clip = 1.0\n"), HasSubstr("step 2/2")));
  std::ofstream(dir / "d.toml") << "steps = 2\nstepz = 3\n";
  const Outcome wrong = penstock({"train", "--config", dir / "d.toml"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("line 2"), HasSubstr("'stepz'"), HasSubstr("did you mean steps?")));
}

TEST(TrainCommand, RefusesWhatFitsNoRunBeforeStartingRanks) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--batch=2"}, "microbatches"}, {{"--ranks=3", "--dp=2"}, "cannot be shared"},
      {{"--schedule=2F2B"}, "2F2B"},   {{"--resume"}, "--checkpoint"},
      {{"nowhere.pt2"}, "--data"},     {{"--data=nowhere.txt"}, "there is no file 'nowhere.txt'"},
      {{"--optimizer=adam"}, "adamw"},
  };
  for (const auto& [words, hint] : cases) {
    const Outcome outcome = penstock(small(words));
    EXPECT_EQ(outcome.code, 2) << words[0];
    EXPECT_THAT(outcome.err, AllOf(StartsWith("penstock: error: "), HasSubstr(hint)));
    EXPECT_THAT(outcome.err, testing::Not(HasSubstr("rank 0")));
  }
}

TEST(TrainCommand, IsARankWhereAnotherLauncherStartedIt) {
  std::vector<std::string> words = small({"--ranks=2"});
  words.insert(words.begin(), {"run", "--ranks", "2", "--", PENSTOCK_TOOL});
  const Outcome outcome = penstock(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[0] step 4/4  loss "));
}

}  // namespace
}  // namespace penstock::test
