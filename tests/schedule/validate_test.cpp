// The validator, rule by rule: messages, positions, and that all findings are reported.
#include "support/error_message.h"

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

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ScheduleFile file(const std::string& text, const CsvOptions& options = {}) {
  std::istringstream in(text);
  return read_csv(in, options);
}

std::vector<std::string> texts(const Diagnostics& diagnostics) {
  std::vector<std::string> lines;
  for (const Diagnostic& diagnostic : diagnostics) lines.push_back(to_string(diagnostic));
  return lines;
}

std::vector<std::string> findings(const std::string& text, const CsvOptions& options = {}) {
  return texts(file(text, options).validate().findings);
}

TEST(ScheduleValidate, AcceptsValidTablesAndLoweredLists) {
  EXPECT_THAT(findings("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), IsEmpty());
  EXPECT_THAT(findings("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), IsEmpty());
  EXPECT_THAT(findings("0F0,0F1\n1F0,1F1\n"), IsEmpty());  // no backward at all: evaluation
}

TEST(ScheduleValidate, ReportsEmptyTable) {
  const std::vector<std::string> lines = texts(validate(Schedule{}).findings);
  EXPECT_THAT(lines, testing::Contains(HasSubstr("there are no ranks")));
  EXPECT_THAT(lines, testing::Contains(HasSubstr("there are no stages")));
  EXPECT_THAT(lines, testing::Contains(HasSubstr("there are no microbatches")));
}

TEST(ScheduleValidate, ReportsMissingActions) {
  EXPECT_THAT(findings("0F0,0F1,0B0\n1F0,1F1,1B0,1B1\n"),
              ElementsAre("error: row 1: stage 0 has no B or I for microbatch 1",
                          "error: row 1: stage 0 has no B or W for microbatch 1"));
  EXPECT_THAT(findings("0F0,0I0\n"), ElementsAre("error: row 1: stage 0 has no B or W for microbatch 0"));
  EXPECT_THAT(findings("0F0,0B0\n", {.microbatches = 9}),
              testing::Contains("error: row 1: stage 0 has no F for microbatches 1, 2, 3, 4, 5 and 3 more"));
}

TEST(ScheduleValidate, ReportsDuplicateAndMisorderedActions) {
  EXPECT_THAT(findings("0F0,0F0,0B0\n"), ElementsAre("error: row 1, column 2: 0F0 appears twice"));
  EXPECT_THAT(findings("0F0,0B0,0I0\n"),
              ElementsAre("error: row 1, column 3: 0I0 repeats the backward pass of an earlier B, I or W"));
  EXPECT_THAT(
      findings("0B0,0F0\n"),
      ElementsAre("error: row 1, column 1: 0B0 needs the output of stage 0 of microbatch 0, which no earlier "
                  "action of the rank produces"));
  EXPECT_THAT(
      findings("0F0,0W0,0I0\n"),
      ElementsAre("error: row 1, column 2: 0W0 needs the input gradient of stage 0 of microbatch 0, which no "
                  "earlier action of the rank produces"));
}

TEST(ScheduleValidate, ReportsStagesOnTwoRanks) {
  EXPECT_THAT(findings("0F0,0B0\n1F0,0F1,1B0,1F1,1B1,0B1\n"),
              testing::Contains("error: row 2, column 2: 0F1 belongs to stage 0, which is on rank 0"));
}

TEST(ScheduleValidate, ReportsUnknownMicrobatches) {
  EXPECT_THAT(findings("0F0,0F1,0B0,0B1\n", {.microbatches = 1}),
              ElementsAre("error: row 1, column 2: 0F1 names microbatch 1, but there are only 1",
                          "error: row 1, column 4: 0B1 names microbatch 1, but there are only 1"));
}

TEST(ScheduleValidate, ReportsUnmatchedTransfers) {
  EXPECT_THAT(findings("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              ElementsAre("error: row 1: stage 0 has no SEND_F for microbatch 0 to stage 1"));
  EXPECT_THAT(findings("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0\n"),
              ElementsAre("error: row 2: stage 1 has no SEND_B for microbatch 0 to stage 0"));
  EXPECT_THAT(
      findings("0F0,1F0,0SEND_F0,1B0,0B0\n"),
      ElementsAre(
          "error: row 1, column 3: 0SEND_F0: stages 0 and 1 are on the same rank, so no transfer is needed"));
}

TEST(ScheduleValidate, ReportsUseOfValueNotReceived) {
  EXPECT_THAT(
      findings("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n"),
      ElementsAre(
          "error: row 2, column 1: 1F0 needs the output of stage 0 of microbatch 0, received by stage 1, "
          "which no earlier action of the rank produces"));
}

TEST(ScheduleValidate, ReportsUseOfShardedStage) {
  EXPECT_THAT(findings("0UNSHARD,0F0,0RESHARD,0B0\n"),
              ElementsAre("error: row 1, column 4: 0B0 uses stage 0 while it is sharded"));
  EXPECT_THAT(findings("0UNSHARD,0UNSHARD,0F0,0B0,0RESHARD,0RESHARD\n"),
              ElementsAre("error: row 1, column 2: 0UNSHARD: the stage is already unsharded",
                          "error: row 1, column 6: 0RESHARD: the stage is already sharded"));
}

TEST(ScheduleValidate, RequiresOneReduceGradAfterLastBackwardOfStage) {
  EXPECT_THAT(
      findings("0F0,0REDUCE_GRAD,0B0\n"),
      ElementsAre(
          "error: row 1, column 2: 0REDUCE_GRAD needs the weight gradient of stage 0 of microbatch 0, which "
          "no earlier action of the rank produces"));
  EXPECT_THAT(findings("0F0,0F1,0REDUCE_GRAD,0B0,0B1\n"),  // one message for both microbatches
              ElementsAre(HasSubstr("0REDUCE_GRAD needs the weight gradient of stage 0 of microbatch 0")));
  EXPECT_THAT(findings("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n"),
              ElementsAre("error: row 1, column 4: 0REDUCE_GRAD appears twice"));
  EXPECT_THAT(findings("0F0,1F0,1B0,0B0,0REDUCE_GRAD\n"),
              ElementsAre("error: row 1: stage 1 has no REDUCE_GRAD, but other stages do"));
}

TEST(ScheduleValidate, ReportsCycleOfComputeTable) {
  EXPECT_THAT(
      findings("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
      ElementsAre(
          "error: row 1, column 2: deadlock: row 1, column 2, 0B0 (waits for row 2, column 3, 1B0) -> "
          "row 2, column 2, 1F1 (waits for row 1, column 3, 0F1) -> row 1, column 2, 0B0"));
}

TEST(ScheduleValidate, DistinguishesSendModes) {
  const std::string agreed =
      "0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  const Verdict safe = file(agreed).validate();
  EXPECT_TRUE(safe.safe(SendMode::Buffered) && safe.safe(SendMode::Ordered) && safe.safe(SendMode::Blocking));

  // Both ranks send before they post the receive for the other's message: safe only with buffered sends.
  const std::string disagree =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  const Verdict verdict = file(disagree).validate();
  EXPECT_TRUE(verdict.valid());
  EXPECT_TRUE(verdict.safe(SendMode::Buffered));
  EXPECT_THAT(
      texts(verdict.of(SendMode::Ordered)),
      ElementsAre(
          "error: row 1, column 4: the pair's transfers run in order, but the ranks disagree on transfer 1 "
          "of ranks 0 and 1: row 1, column 4, 0SEND_F1 -> row 2, column 4, 1SEND_B0 -> row 1, column 4, "
          "0SEND_F1"));
  EXPECT_THAT(
      texts(verdict.of(SendMode::Blocking)),
      ElementsAre(
          "error: row 1, column 4: deadlock: row 1, column 4, 0SEND_F1 (waits for row 2, column 5, 1RECV_F1) "
          "-> row 2, column 4, 1SEND_B0 (waits for row 1, column 5, 0RECV_B0) -> row 1, column 4, 0SEND_F1"));
}

TEST(ScheduleValidate, AnswersOnlyForCheckedSendModes) {
  const ScheduleFile lowered = file("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  const Verdict one = lowered.validate({.send_mode = SendMode::Buffered});
  EXPECT_TRUE(one.safe(SendMode::Buffered));
  EXPECT_EQ(
      test::error_message<UsageError>([&] { one.of(SendMode::Ordered); }),
      "ordered sends were not checked\nhint: validate without ValidateOptions::send_mode, or with this one");
  EXPECT_ERROR(one.safe(SendMode::Ordered), UsageError, "ordered sends were not checked");
  EXPECT_ERROR(one.all(SendMode::Blocking), UsageError, "blocking sends were not checked");
  // Lowering makes a valid compute table safe in every mode.
  EXPECT_TRUE(file("0F0,0B0\n").validate({.send_mode = SendMode::Buffered}).safe(SendMode::Blocking));
}

TEST(ScheduleValidate, ReportsAllFindings) {
  EXPECT_THAT(findings("0F0,0F0,0B0,0UNSHARD,0B9\n1F0\n", {.microbatches = 2}),
              testing::SizeIs(testing::Ge(8)));
}

TEST(ScheduleValidate, ReportsInconsistentCounts) {
  const Action f = Action::forward(StageId(0), MicrobatchId(0));
  const Placement one = Placement::make(1, 1, PlacementStyle::Loop);
  EXPECT_THAT(texts(validate(Schedule{"", one, 1, {{f}, {}}}).findings),
              ElementsAre("error: the placement has 1 ranks, but there are lists for 2"));
  EXPECT_THAT(texts(validate(Schedule{"", one, 1, {{f}}}, Wiring(2)).findings),
              ElementsAre("error: the wiring has 2 stages, but the placement has 1"));
  EXPECT_THAT(texts(validate(Schedule{"", one, 0, {{f}}}).findings),
              ElementsAre("error: there are no microbatches"));
  EXPECT_THAT(texts(validate(Schedule{"", one, 1, {{f}}}).findings), IsEmpty());
}

TEST(ScheduleValidate, ReportsStagesThatDoNotExist) {
  const Placement one = Placement::make(1, 1, PlacementStyle::Loop);
  const Action f = Action::forward(StageId(0), MicrobatchId(0));
  EXPECT_THAT(
      texts(validate(Schedule{"", one, 1, {{f, Action::forward(StageId(1), MicrobatchId(0))}}}).findings),
      ElementsAre("error: rank 0, step 1: 1F0 names stage 1, but there are only 1"));
  EXPECT_THAT(texts(validate(Schedule{"", one, 1, {{f, Action::reduce_grad(StageId(0))}}}).findings),
              ElementsAre("error: rank 0, step 1: 0REDUCE_GRAD is not allowed in a compute table"));
}

TEST(ScheduleValidate, ReportsTransfersWithoutEdge) {
  EXPECT_THAT(findings("0F0,0SEND_F0,0SEND_F0>2\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0,2F0\n"),
              testing::Contains("error: row 3: stage 2 has no RECV_F for microbatch 0 from stage 0"));
  Draft draft = lower(make_schedule(ScheduleKind::ForwardOnly, {2, 1, 1}), {.shard = false});
  draft.ranks[0].push_back(Action::recv_backward(StageId(0), MicrobatchId(0), StageId(1)));
  EXPECT_THAT(texts(validate(draft).findings),
              ElementsAre("error: rank 0, step 2: 0RECV_B0: no stage has a backward pass"));
  draft.ranks[0].back() = Action::send_forward(StageId(0), MicrobatchId(0), StageId(7));
  EXPECT_THAT(texts(validate(draft).findings),
              ElementsAre("error: rank 0, step 2: 0SEND_F0>7: there is no edge from stage 0 to stage 7"));
  draft.ranks[0].back() = Action::recv_forward(StageId(0), MicrobatchId(0), StageId(1));
  EXPECT_THAT(texts(validate(draft).findings),
              ElementsAre("error: rank 0, step 2: 0RECV_F0<1: there is no edge from stage 1 to stage 0"));
}

TEST(ScheduleValidate, LimitsNumberOfFindings) {
  const auto repeated = [](int count) {
    std::string text = "0F0,0B0";
    for (int i = 0; i < count; ++i) text += ",0F0";
    return findings(text + "\n");
  };
  EXPECT_EQ(repeated(1000).size(), 1000U);
  ASSERT_EQ(repeated(1001).size(), 1001U);
  EXPECT_EQ(repeated(1001).back(), "error: and 1 more");
  EXPECT_EQ(repeated(1500).back(), "error: and 500 more");
}

TEST(ScheduleValidate, ReportsRanksAboveLimitInFlight) {
  const Verdict verdict = validate(make_schedule(ScheduleKind::OneFOneB, {3, 1, 6}), {.max_in_flight = 2});
  EXPECT_THAT(texts(verdict.findings),
              ElementsAre("error: rank 0: 3 microbatches are in flight at once, more than the 2 allowed"));
  EXPECT_THAT(verdict.peak_in_flight_of_rank, ElementsAre(3, 2, 1));
  // Evaluation keeps nothing.
  EXPECT_THAT(validate(make_schedule(ScheduleKind::ForwardOnly, {2, 1, 4})).peak_in_flight_of_rank,
              ElementsAre(0, 0));
}

// Ranks 0 and 2 agree; ranks 1 and 2 do not.
TEST(ScheduleValidate, ReportsPairsThatDisagree) {
  const Verdict verdict = file(
                              "0F0,0SEND_F0,0F1,0SEND_F1\n"
                              "1RECV_F0,1F0,1RECV_F1,1F1,1SEND_F1,1SEND_F0\n"
                              "2RECV_F0,2F0,2RECV_F1,2F1\n")
                              .validate();
  EXPECT_TRUE(verdict.safe(SendMode::Buffered));
  EXPECT_THAT(
      texts(verdict.of(SendMode::Ordered)),
      ElementsAre("error: row 2, column 5: the pair's transfers run in order, but the ranks disagree on "
                  "transfer 0 of ranks 1 and 2: row 2, column 5, 1SEND_F1 -> row 3, column 1, 2RECV_F0 -> "
                  "row 2, column 5, 1SEND_F1"));
}

TEST(ScheduleValidate, CountsMicrobatchesInFlight) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const Schedule schedule = make_schedule(ScheduleKind::OneFOneB, {ranks, 1, 2 * ranks});
    const Verdict verdict = validate(schedule);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(verdict.peak_in_flight[static_cast<std::size_t>(rank)], ranks - rank);
    }
    EXPECT_TRUE(validate(schedule, {.max_in_flight = ranks}).valid());
    EXPECT_EQ(validate(schedule, {.max_in_flight = ranks - 1}).valid(), false);
  }
}

TEST(ScheduleProgram, RequiresValidDraft) {
  static_assert(!std::is_default_constructible_v<Program>);
  const Schedule schedule = make_schedule(ScheduleKind::OneFOneB, {2, 1, 4});
  const Program program = make_program(schedule, SendMode::Blocking);
  EXPECT_EQ(program.peak_in_flight(StageId(0)), 2);
  EXPECT_TRUE(program.has_backward());

  Draft broken = lower(schedule);
  broken.ranks[1].pop_back();
  broken.ranks[1].pop_back();
  try {
    Program::validated(broken, SendMode::Buffered);
    FAIL();
  } catch (const ScheduleError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is not safe with buffered sends"));
    EXPECT_THAT(error.what(), HasSubstr("rank 1: stage 1 has no REDUCE_GRAD"));
  }
  Schedule wrong = schedule;
  std::swap(wrong.ranks[0][0], wrong.ranks[0].back());
  EXPECT_THAT(test::error_message<ScheduleError>([&] { make_program(wrong, SendMode::Buffered); }),
              testing::StartsWith("the schedule 1F1B is not valid:\nerror: rank 0, step 0: 0B3 needs"));
  wrong.name = broken.name = "";
  EXPECT_THAT(test::error_message<ScheduleError>([&] { make_program(wrong, SendMode::Buffered); }),
              testing::StartsWith("the schedule is not valid:\n"));
  EXPECT_THAT(test::error_message<ScheduleError>([&] { Program::validated(broken, SendMode::Ordered); }),
              testing::StartsWith("the program is not safe with ordered sends:\n"));
}

TEST(ScheduleValidate, RejectsHugeNumbersWithoutLargeAllocations) {
  EXPECT_THAT(findings("0F999999998,0B0\n").front(), HasSubstr("need far more than the 2 actions"));
  // A million beyond four times the actions is accepted.
  const auto far = [](int microbatches) {
    return findings("0F0,0B0\n", {.microbatches = microbatches}).front();
  };
  EXPECT_THAT(far(1'000'008), HasSubstr("stage 0 has no F"));
  EXPECT_EQ(far(1'000'009),
            "error: 1 stages by 1000009 microbatches need far more than the 2 actions in the lists");
}

}  // namespace
}  // namespace penstock::schedule
