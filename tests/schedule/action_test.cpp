// The text format of actions: equal to the reference, strict, and exactly invertible.
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/schedule/action.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <tuple>

namespace penstock::schedule {
namespace {

using testing::HasSubstr;

TEST(ScheduleAction, TextMatchesReference) {
  const StageId s1(1), s2(2), s4(4), s7(7);
  const MicrobatchId m0(0), m3(3);
  EXPECT_EQ(to_string(Action::forward(s2, m0)), "2F0");
  EXPECT_EQ(to_string(Action::backward(s2, m3)), "2B3");
  EXPECT_EQ(to_string(Action::backward_input(s2, m3)), "2I3");
  EXPECT_EQ(to_string(Action::backward_weight(s2, m3)), "2W3");
  EXPECT_EQ(to_string(Action::send_forward(s1, m3, s2)), "1SEND_F3");
  EXPECT_EQ(to_string(Action::recv_forward(s2, m3, s1)), "2RECV_F3");
  EXPECT_EQ(to_string(Action::send_backward(s2, m3, s1)), "2SEND_B3");
  EXPECT_EQ(to_string(Action::recv_backward(s1, m3, s2)), "1RECV_B3");
  EXPECT_EQ(to_string(Action::unshard(s4)), "4UNSHARD");
  EXPECT_EQ(to_string(Action::reshard(s4)), "4RESHARD");
  EXPECT_EQ(to_string(Action::reduce_grad(s4)), "4REDUCE_GRAD");
  EXPECT_EQ(to_string(Action::overlap(Action::forward(s1, m3), Action::backward(s7, m0))),
            "(1F3;7B0)OVERLAP_F_B");
  EXPECT_EQ(to_string(Action()), "");
}

TEST(ScheduleAction, SkipTransfersNameTheirPeerStage) {
  const StageId s1(1), s4(4);
  const MicrobatchId m3(3);
  EXPECT_EQ(to_string(Action::send_forward(s1, m3, s4)), "1SEND_F3>4");
  EXPECT_EQ(to_string(Action::recv_forward(s4, m3, s1)), "4RECV_F3<1");
  EXPECT_EQ(to_string(Action::send_backward(s4, m3, s1)), "4SEND_B3>1");
  EXPECT_EQ(to_string(Action::recv_backward(s1, m3, s4)), "1RECV_B3<4");
}

TEST(ScheduleAction, RejectsNumbersOutOfRange) {
  const StageId last(kMaxStages - 1);
  const MicrobatchId m0(0), most(kMaxMicrobatches - 1);
  EXPECT_EQ(Action::forward(last, most).stage(), last);
  EXPECT_EQ(Action::forward(last, most).microbatch(), most);
  EXPECT_EQ(Action::send_backward(last, most, last).peer(), last);

  EXPECT_ERROR(Action::forward(StageId(kMaxStages), m0), UsageError,
               "a stage in an action must be between 0 and " + std::to_string(kMaxStages - 1));
  EXPECT_ERROR(Action::forward(StageId(65'536), m0), UsageError, "not 65536");  // 0 in 16 bits
  EXPECT_ERROR(Action::backward(StageId(-1), m0), UsageError, "of a stage in");
  EXPECT_ERROR(Action::unshard(StageId(kMaxStages)), UsageError, "of a stage in");
  EXPECT_ERROR(Action::backward_weight(last, MicrobatchId(kMaxMicrobatches)), UsageError,
               "a microbatch in an action must be between 0 and " + std::to_string(kMaxMicrobatches - 1));
  EXPECT_ERROR(Action::backward_input(last, MicrobatchId(-1)), UsageError, "of a microbatch in");
  EXPECT_ERROR(Action::send_forward(last, m0, StageId(kMaxStages)), UsageError, "of a stage in");
  EXPECT_ERROR(Action::recv_forward(StageId(0), m0, StageId(-1)), UsageError, "of a stage in");
}

Action random_action(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int low = below(below(2) == 0 ? 40 : kMaxStages - 1);
  const StageId early(low);
  const StageId late(low + 1 + below(std::min(3, kMaxStages - 1 - low)));
  const MicrobatchId batch(below(below(2) == 0 ? 100 : kMaxMicrobatches));
  const MicrobatchId other(below(100));
  switch (below(13)) {
    case 0:
      return Action::forward(early, batch);
    case 1:
      return Action::backward(early, batch);
    case 2:
      return Action::backward_input(early, batch);
    case 3:
      return Action::backward_weight(early, batch);
    case 4:
      return Action::overlap(Action::forward(early, batch), Action::backward(late, other));
    case 5:
      return Action::overlap(Action::forward(late, batch), Action::backward_input(early, other));
    case 6:
      return Action::send_forward(early, batch, late);
    case 7:
      return Action::recv_forward(late, batch, early);
    case 8:
      return Action::send_backward(late, batch, early);
    case 9:
      return Action::recv_backward(early, batch, late);
    case 10:
      return Action::unshard(early);
    case 11:
      return Action::reshard(late);
    default:
      return Action::reduce_grad(late);
  }
}

TEST(ScheduleAction, ParsesWhatItPrints) {
  std::mt19937 random(20);
  for (int i = 0; i < 100'000; ++i) {
    const Action action = random_action(random);
    const auto result = try_parse_action(to_string(action));
    const auto* problem = std::get_if<ActionProblem>(&result);
    ASSERT_EQ(problem, nullptr) << to_string(action) << ": " << problem->reason;
    ASSERT_EQ(std::get<Action>(result), action) << to_string(action);
  }
}

// Every accepted string is printed identically: no two strings denote one action.
TEST(ScheduleAction, PrintsWhatItParsed) {
  std::mt19937 random(21);
  const std::string alphabet = "0123456789FBIWSENDRCVUHA_GOLP();<> ,x";
  int accepted = 0;
  for (int i = 0; i < 300'000; ++i) {
    std::string text = to_string(random_action(random));
    for (unsigned edits = random() % 3; edits > 0 && !text.empty(); --edits) {
      const std::size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      switch (random() % 3) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.erase(at, 1);
          break;
        default:
          text.insert(at, 1, c);
          break;
      }
    }
    const auto result = try_parse_action(text);
    if (!std::holds_alternative<Action>(result)) continue;
    ++accepted;
    ASSERT_EQ(to_string(std::get<Action>(result)), text);
  }
  EXPECT_GT(accepted, 100'000);
}

class ScheduleInvalidAction
    : public testing::TestWithParam<std::tuple<const char*, std::size_t, const char*>> {};

TEST_P(ScheduleInvalidAction, IsRejectedWithColumnAndReason) {
  const auto& [text, column, reason] = GetParam();
  const auto result = try_parse_action(text);
  const auto* problem = std::get_if<ActionProblem>(&result);
  ASSERT_NE(problem, nullptr) << text;
  EXPECT_EQ(problem->column, column) << text << ": " << problem->reason;
  EXPECT_THAT(problem->reason, HasSubstr(reason)) << text;
}

INSTANTIATE_TEST_SUITE_P(
    Action, ScheduleInvalidAction,
    testing::Values(
        std::tuple{"", 1, "empty"}, std::tuple{"1F0garbage", 4, "unexpected 'garbage'"},
        std::tuple{"F0", 1, "number of a stage"}, std::tuple{"1", 2, "expected F, B"},
        std::tuple{"1X0", 2, "expected F, B"}, std::tuple{"1F", 3, "number of a microbatch"},
        std::tuple{"01F0", 1, "leading zeros"}, std::tuple{"1F00", 3, "leading zeros"},
        std::tuple{" 1F0", 1, "number of a stage"}, std::tuple{"-1F0", 1, "number of a stage"},
        std::tuple{"1F-1", 3, "number of a microbatch"}, std::tuple{"1UNSHARD2", 9, "takes no microbatch"},
        std::tuple{"70000F0", 1, "at most 65534"}, std::tuple{"1F99999999999999999999", 3, "at most"},
        std::tuple{"1SEND_F3>2", 9, "is adjacent"}, std::tuple{"4SEND_F3>1", 10, "later stage"},
        std::tuple{"1RECV_F3<4", 10, "earlier stage"}, std::tuple{"1SEND_F3>1", 10, "itself"},
        std::tuple{"1SEND_F3<4", 9, "unexpected"}, std::tuple{"0RECV_F1", 1, "no adjacent stage"},
        std::tuple{"0SEND_B1", 1, "no adjacent stage"}, std::tuple{"(0F1;2F3)OVERLAP_F_B", 6, "B or an I"},
        std::tuple{"(0B1;2B3)OVERLAP_F_B", 2, "must be an F"}, std::tuple{"(0F1)OVERLAP_F_B", 5, "';'"},
        std::tuple{"(0F1;2B3OVERLAP_F_B", 9, "')'"}, std::tuple{"(0F1;2B3)OVERLAP", 10, "OVERLAP_F_B"},
        std::tuple{"()OVERLAP_F_B", 2, "number of a stage"}, std::tuple{"65535F0", 1, "at most 65534"},
        std::tuple{"65534SEND_F0", 1, "stage 65534 has no adjacent stage in that direction"},
        std::tuple{"65534RECV_B0", 1, "stage 65534 has no adjacent stage"},
        std::tuple{"4SEND_B3>5", 10, "expected a earlier stage"},
        std::tuple{"4RECV_B3<1", 10, "expected a later stage"},
        std::tuple{"4SEND_B3>4", 10, "cannot send to or receive from itself"},
        std::tuple{"1SEND_F3>", 10, "number of a stage"}, std::tuple{"1SEND_F3>65535", 10, "at most 65534"},
        std::tuple{"1SEND_F3>04", 10, "leading zeros"}, std::tuple{"4SEND_B3>3", 9, "stage 3 is adjacent"},
        std::tuple{"(0F1;2W3)OVERLAP_F_B", 6, "B or an I"},
        std::tuple{"(0F1;)OVERLAP_F_B", 6, "of a stage"}));

TEST(ScheduleAction, AcceptsLargestNumbers) {
  const std::string batch = std::to_string(kMaxMicrobatches - 1);
  EXPECT_EQ(to_string(parse_action("65534F" + batch)), "65534F" + batch);
  EXPECT_EQ(to_string(parse_action("65533SEND_F0")), "65533SEND_F0");
  EXPECT_EQ(to_string(parse_action("0SEND_F0>65534")), "0SEND_F0>65534");
  EXPECT_EQ(to_string(parse_action("0F0")), "0F0");
  const auto result = try_parse_action("0F" + std::to_string(kMaxMicrobatches));
  ASSERT_TRUE(std::holds_alternative<ActionProblem>(result));
  EXPECT_EQ(std::get<ActionProblem>(result).reason, "the number of a microbatch must be at most " + batch);
}

TEST(ScheduleAction, ErrorsGiveRangeOfNumbers) {
  const auto message = [](auto make) {
    try {
      make();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([] { Action::forward(StageId(kMaxStages), MicrobatchId(0)); }),
            "the number of a stage in an action must be between 0 and 65534, not 65535");
  EXPECT_EQ(message([] { Action::forward(StageId(0), MicrobatchId(-1)); }),
            "the number of a microbatch in an action must be between 0 and " +
                std::to_string(kMaxMicrobatches - 1) + ", not -1");
}

TEST(ScheduleAction, ParseErrorReportsColumnAndReason) {
  try {
    parse_action("1F0garbage");
    FAIL();
  } catch (const ParseError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("'1F0garbage' is not a valid action: column 4: unexpected 'garbage'"));
  }
}

}  // namespace
}  // namespace penstock::schedule
