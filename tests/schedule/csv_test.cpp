// Schedules as CSV: round trips, inferred counts, and errors.
#include "support/error_message.h"
#include "support/temp_dir.h"

#include <penstock/base/error.h>
#include <penstock/schedule/action.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace penstock::schedule {
namespace {

using testing::HasSubstr;

Diagnostics problems_of(const std::string& text) {
  std::istringstream in(text);
  Diagnostics problems;
  read_csv(in, problems);
  return problems;
}

TEST(ScheduleCsv, RoundTripsTablesAndLoweredListsOfEveryKind) {
  for (const ScheduleInfo& info : schedule_infos()) {
    const ScheduleShape shape{4, info.default_stages_per_rank, 9};
    const Schedule schedule = make_schedule(info.kind, shape);
    std::istringstream in(to_csv(schedule));
    const ScheduleFile file = read_csv(in);
    EXPECT_EQ(file.level, ProgramLevel::Compute);
    EXPECT_EQ(file.placement, schedule.placement) << info.name;
    EXPECT_EQ(file.microbatches, 9);
    EXPECT_EQ(to_csv(file.schedule()), to_csv(schedule)) << info.name;

    const Draft draft = lower(schedule, {.skips = {{StageId(0), StageId(2)}, {StageId(1), StageId(3)}}});
    std::istringstream lowered(to_csv(draft));
    const ScheduleFile back = read_csv(lowered);
    EXPECT_EQ(back.level, ProgramLevel::Lowered);
    EXPECT_EQ(back.wiring, draft.wiring) << info.name;
    EXPECT_EQ(back.draft().ranks, draft.ranks) << info.name;
    EXPECT_TRUE(back.validate().safe(SendMode::Blocking)) << info.name;
  }
}

TEST(ScheduleCsv, AcceptsCrLfAndSpaces) {
  std::istringstream in("0F0,,0B0\r\n 1F0 , 1B0\r\n");
  const ScheduleFile file = read_csv(in);
  EXPECT_EQ(to_csv(file.schedule()), "0F0,,0B0\n1F0,1B0\n");
}

TEST(ScheduleCsv, OmitsTrailingIdleSlots) {
  Schedule schedule = make_schedule(ScheduleKind::GPipe, {1, 1, 1});
  schedule.ranks[0].resize(9);
  EXPECT_EQ(to_csv(schedule), "0F0,0B0\n");
}

TEST(ScheduleCsv, ReportsRowColumnCharacterAndReasonOfEveryBadField) {
  const Diagnostics problems = problems_of("0F0,0F1x,0B0\n1F0,zz\n");
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_EQ(
      to_string(problems[0]),
      "error: row 1, column 2: '0F1x' is not a valid action: character 4: unexpected 'x' after the action");
  EXPECT_EQ(problems[1].where, "row 2, column 2");
  std::istringstream in("0F0,0F1x\n");
  EXPECT_ERROR(read_csv(in), ParseError, "row 1, column 2: '0F1x' is not a valid action");
}

TEST(ScheduleCsv, ReportsStagesWithoutRank) {
  EXPECT_THAT(problems_of("0F0,0B0\n2F0,2B0\n")[0].message, HasSubstr("no rank has stage 1"));
}

TEST(ScheduleCsv, RejectsEmptyFiles) {
  EXPECT_THAT(problems_of("")[0].message, HasSubstr("empty"));
  EXPECT_THAT(problems_of("\n\n")[0].message, HasSubstr("no actions"));
  EXPECT_THAT(problems_of(",,,\n,\n")[0].message, HasSubstr("no actions"));
}

TEST(ScheduleCsv, ReportsHugeRowsAndBinaryData) {
  EXPECT_THAT(problems_of(std::string(10'000'000, 'x'))[0].message, HasSubstr("longer than 8.00 MiB"));
  std::string junk;
  for (int i = 0; i < 200'000; ++i) junk += static_cast<char>(i * 7919 >> 5);
  const Diagnostics problems = problems_of(junk);
  EXPECT_LE(problems.size(), 1'002U);  // the first thousand, and the number of the remaining ones
  EXPECT_THAT(problems.back().message, HasSubstr("more"));
  EXPECT_FALSE(problems_of(std::string(1000, '\0')).empty());
}

TEST(ScheduleCsv, ReportsAtMostThousandProblems) {
  const auto bad = [](int count) {
    std::string text = "0F0";
    for (int i = 0; i < count; ++i) text += ",x";
    return problems_of(text + "\n");
  };
  EXPECT_EQ(bad(1000).size(), 1000U);
  ASSERT_EQ(bad(1001).size(), 1001U);
  EXPECT_EQ(bad(1001).back().message, "and 1 more");
  EXPECT_EQ(bad(1234).back().message, "and 234 more");
}

TEST(ScheduleCsv, LimitsRowsAndTheirLength) {
  const std::size_t most = std::size_t{8} << 20U;
  const std::string row = "0F0" + std::string(most - 3, ' ');
  EXPECT_TRUE(problems_of(row + "\n").empty());
  EXPECT_EQ(to_string(problems_of(row + " \n1F0\n")[0]),
            "error: row 1, column 1: the row is longer than 8.00 MiB");
  const std::string rows(kMaxStages, '\n');
  EXPECT_EQ(problems_of(rows)[0].message, "the file has no actions");
  const Diagnostics problems = problems_of(rows + "0F0\n");
  EXPECT_EQ(to_string(problems[0]),
            "error: row 65536, column 1: there are more rows than the supported number of ranks");
}

TEST(ScheduleCsv, ListsFirstStagesWithoutRank) {
  EXPECT_EQ(problems_of("0F0\n6F0\n")[0].message, "no rank has stage 1, 2, 3, 4, 5, but there is a stage 6");
  EXPECT_EQ(problems_of("0F0\n8F0\n")[0].message,
            "no rank has stage 1, 2, 3, 4, 5 and 2 more, but there is a stage 8");
  EXPECT_EQ(problems_of("0F0,1F0\n").size(), 0U);
  // An unreadable field may have named the missing stage.
  const Diagnostics unreadable = problems_of("0F0\n1X0\n2F0\n");
  ASSERT_EQ(unreadable.size(), 1U);
  EXPECT_EQ(unreadable[0].where, "row 2, column 1");
}

TEST(ScheduleCsv, RejectsEdgesToStagesThatNoRankRuns) {
  const std::string message = "a transfer or skip edge refers to a stage that no rank runs";
  const Diagnostics problems = problems_of("0F0,0SEND_F0>3\n1F0\n");
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].message, message);
  std::istringstream in("0F0\n1F0\n2F0\n");
  Diagnostics found;
  read_csv(in, found, {.skips = {{StageId(0), StageId(3)}}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].message, message);
  std::istringstream same("0F0\n1F0\n2F0\n");
  EXPECT_EQ(read_csv(same, CsvOptions{.skips = {{StageId(0), StageId(2)}}}).wiring.skips().size(), 1U);
}

TEST(ScheduleCsv, WritesSameTextToStreams) {
  const Schedule schedule = make_schedule("1F1B", {2, 1, 3});
  const Draft draft = lower(schedule);
  std::ostringstream table, lists;
  write_csv(table, schedule);
  write_csv(lists, draft);
  EXPECT_EQ(table.str(), to_csv(schedule));
  EXPECT_EQ(lists.str(), to_csv(draft));
}

TEST(ScheduleCsv, ReadsFromPath) {
  const test::TempDir dir;
  const std::filesystem::path folder = dir.path();
  const Schedule schedule = make_schedule("1F1B", {2, 1, 4});
  const auto good = folder / "good.csv", bad = folder / "bad.csv";
  std::ofstream(good) << to_csv(schedule);
  std::ofstream(bad) << "0F0,0X1\n";
  EXPECT_EQ(read_csv(good).schedule().ranks, schedule.ranks);
  EXPECT_EQ(read_csv(good.string()).microbatches, 4);
  EXPECT_EQ(read_csv(good, {.microbatches = 5}).microbatches, 5);
  EXPECT_THAT(test::error_message<ParseError>([&] { read_csv(bad); }),
              testing::AllOf(HasSubstr("bad.csv"), HasSubstr("row 1, column 2")));
  EXPECT_ERROR(read_csv(folder), StorageError, "is not a regular file");
  EXPECT_ERROR(read_csv(folder / "none.csv"), StorageError, "does not exist");
}

}  // namespace
}  // namespace penstock::schedule
