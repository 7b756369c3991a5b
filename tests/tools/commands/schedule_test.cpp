// `penstock schedule` through the real binary: the row of one rank, and errors with a hint.
#include "support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace penstock::plan {
namespace {

using test::Outcome;
using testing::HasSubstr;

nlohmann::json schedule_json(std::vector<std::string> words) {
  words.push_back("--json");
  const Outcome outcome = test::penstock(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

TEST(ToolScheduleCommand, SingleRankEqualsRowOfAllRanks) {
  for (const std::string name : {"Interleaved1F1B", "Auto"}) {
    const std::vector<std::string> shape{"schedule", name, "--ranks", "3", "--microbatches", "6"};
    for (const std::vector<std::string>& options :
         {std::vector<std::string>{},
          {"--lowered"},
          {"--costs", PENSTOCK_SOURCE_DIR "/examples/costs.toml"}}) {
      std::vector<std::string> all = shape;
      all.insert(all.end(), options.begin(), options.end());
      std::vector<std::string> one = all;
      one.insert(one.end(), {"--rank", "1"});
      nlohmann::json expected = schedule_json(all);
      const std::string csv = test::penstock(all).out;
      const std::size_t row = csv.find('\n') + 1;
      EXPECT_EQ(test::penstock(one).out, csv.substr(row, csv.find('\n', row) + 1 - row)) << name;
      expected["rank"] = 1;
      expected["rows"] = nlohmann::json::array({expected["rows"][1]});
      EXPECT_EQ(schedule_json(one), expected) << name;
    }
  }
  const Outcome drawn = test::penstock(
      {"schedule", "1F1B", "--ranks", "2", "--microbatches", "4", "--rank", "0", "--as", "grid"});
  EXPECT_EQ(drawn.code, 2);
  EXPECT_THAT(drawn.err, HasSubstr("--rank prints the row of one rank as csv or JSON, not as a picture"));
  EXPECT_EQ(test::penstock({"schedule", "Auto", "--ranks", "2", "--microbatches", "4", "--rank", "2"}).code,
            2);
}

TEST(ToolScheduleCommand, NamedScheduleNeedsCounts) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"schedule", "1F1B"},
                                                {"schedule", "1F1B", "--rank", "0"},
                                                {"simulate", "1F1B"}}) {
    const Outcome outcome = test::penstock(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(
        outcome.err,
        "penstock: error: a named schedule needs --ranks\nhint: for example --ranks 4 --microbatches 8\n");
  }
}

TEST(ToolScheduleCommand, UnwritableOutputHasHint) {
  const test::TempDir dir;
  const auto error = [&](const std::string& output) {
    const Outcome outcome =
        test::penstock({"schedule", "1F1B", "--ranks", "2", "--microbatches", "4", "-o", output});
    EXPECT_EQ(outcome.code, 2);
    return outcome.err;
  };
  EXPECT_THAT(error(dir / "no/such.csv"),
              HasSubstr("\nhint: create the directory '" + (dir / "no") + "' first\n"));
  EXPECT_THAT(error(dir.path()), HasSubstr("\nhint: name a file in this directory\n"));
}

}  // namespace
}  // namespace penstock::plan
