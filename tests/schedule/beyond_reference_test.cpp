// Known defects of the reference that Penstock does not have. Each test fails on the reference.
#include <penstock/base/error.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace penstock::schedule {
namespace {

using testing::HasSubstr;

// The reference's table for the last of 4 ranks with 8 microbatches lacks F0 and has an F8 that does not
// exist.
TEST(ScheduleBeyondReference, Table1F1BMatchesExecutorAndIsValid) {
  const Schedule schedule = make_schedule(ScheduleKind::OneFOneB, {4, 1, 8});
  std::string last;
  for (const Action& action : schedule.of(Rank(3))) last += to_string(action) + " ";
  EXPECT_EQ(last, "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7 ");
  EXPECT_TRUE(validate(schedule).valid());

  std::istringstream theirs(
      "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7\n"
      "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7\n"
      "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7\n"
      "3F1,3B0,3F2,3B1,3F3,3B2,3F4,3B3,3F5,3B4,3F6,3B5,3F7,3B6,3F8,3B7\n");
  const Verdict verdict = read_csv(theirs, CsvOptions{.microbatches = 8}).validate();
  EXPECT_FALSE(verdict.valid());
  EXPECT_THAT(to_string(verdict.findings), HasSubstr("3F8 names microbatch 8, but there are only 8"));
  EXPECT_THAT(to_string(verdict.findings), HasSubstr("stage 3 has no F for microbatch 0"));
}

TEST(ScheduleBeyondReference, FewerMicrobatchesThanStagesWorkOrReportMinimum) {
  for (const ScheduleInfo& info : schedule_infos()) {
    const ScheduleShape shape{8, info.default_stages_per_rank, 3};
    if (info.kind == ScheduleKind::DualPipeV) {
      try {
        make_schedule(info.kind, shape);
        FAIL();
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), HasSubstr("use 16 microbatches"));
      }
      continue;
    }
    EXPECT_NO_THROW(make_program(make_schedule(info.kind, shape), SendMode::Blocking)) << info.name;
  }
  // Microbatches need not be a multiple of the ranks either: 9 microbatches on 4 ranks form 2 rounds of 5 and
  // 4.
  EXPECT_NO_THROW(make_program(make_schedule("Interleaved1F1B", {4, 2, 9}), SendMode::Blocking));
  EXPECT_NO_THROW(make_program(make_schedule("InterleavedZeroBubble", {4, 2, 9}), SendMode::Blocking));
}

TEST(ScheduleBeyondReference, ValidatesFilesWithTransfers) {
  std::istringstream in(
      "0F0,0SEND_F0,0RECV_B0,0B0\n"
      "1RECV_F0,1F0,1SEND_B0,1B0\n");  // sends the gradient before it is computed
  const Verdict verdict = read_csv(in).validate();
  EXPECT_FALSE(verdict.valid());
  EXPECT_THAT(to_string(verdict.findings),
              HasSubstr("row 2, column 3: 1SEND_B0 needs the input gradient of stage 1"));
}

TEST(ScheduleBeyondReference, RejectsTrailingGarbageWithPosition) {
  const auto result = try_parse_action("1F0garbage");
  const auto* problem = std::get_if<ActionProblem>(&result);
  ASSERT_NE(problem, nullptr);
  EXPECT_EQ(problem->column, 4U);
}

// 3 million actions: the reference's lowering, which looks ahead from every action to the end of the list,
// would take minutes. `./dev bench schedules` measures the ratio at a size that the reference supports.
TEST(ScheduleBeyondReference, LowersLargeSchedulesInLinearTime) {
  const Draft draft = lower(make_schedule("Interleaved1F1B", {256, 2, 1024}));
  // F and B per stage, four transfers per edge, UNSHARD, REDUCE_GRAD and RESHARD per stage.
  EXPECT_EQ(action_count(draft.ranks),
            std::size_t{512} * 1024 * 2 + std::size_t{511} * 1024 * 4 + std::size_t{512} * 3);
  EXPECT_TRUE(validate(draft).safe(SendMode::Blocking));
}

}  // namespace
}  // namespace penstock::schedule
