// The hooks that `penstock train` adds to the trainer: injected faults and the progress board.
#include "support/error_message.h"
#include "train/display/progress_board.h"
#include "train/rank/fault.h"

#include <penstock/base/error.h>

#include <gtest/gtest.h>

#include <cstdlib>

namespace penstock::tool {
namespace {

TEST(ToolFaultSpec, IsParsedStrictly) {
  const auto faults = parse_faults("kill rank=1 step=3 action=1F2; throw at=checkpoint attempt=2;");
  ASSERT_EQ(faults.size(), 2U);
  EXPECT_EQ(faults[0].kind, FaultKind::Kill);
  EXPECT_EQ(faults[0].rank, Rank(1));
  EXPECT_EQ(faults[0].step, 3);
  EXPECT_EQ(faults[0].point, "1F2");
  EXPECT_EQ(faults[1].point, "checkpoint");
  EXPECT_EQ(faults[1].attempt, 2);
  EXPECT_ERROR(parse_faults("explode rank=1"), UsageError, "'explode' is not a known fault");
  EXPECT_ERROR(parse_faults("kill rank=x"), UsageError, "'rank=x' does not contain a number");
  EXPECT_ERROR(parse_faults("kill where=1"), UsageError, "unknown key 'where=1'");
  EXPECT_ERROR(parse_faults("kill rank"), UsageError, "'rank' does not contain a number");
}

TEST(ToolRankProgress, IsVisibleToCreatorOfBoard) {
  ProgressBoard board(2);
  for (const auto& [name, value] : board.environment()) setenv(name.c_str(), value.c_str(), 1);
  RankProgress rank(Rank(1));
  EXPECT_EQ(board.of(Rank(1)), "");
  rank.report(7, schedule::Action::forward(StageId(1), MicrobatchId(2)));
  EXPECT_EQ(board.of(Rank(1)), "step 7, stage 1, action 1F2");
  rank.report(std::nullopt, "setup");
  EXPECT_EQ(board.of(Rank(1)), "setup");
  EXPECT_EQ(board.of(Rank(0)), "");
  for (const auto& [name, value] : board.environment()) unsetenv(name.c_str());
}

}  // namespace
}  // namespace penstock::tool
