// Every generator, over all counts that it supports, gives valid tables that lower to lists that are safe in
// every send mode.
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace penstock::schedule {
namespace {

using testing::HasSubstr;

bool legal(ScheduleKind kind, const ScheduleShape& shape) {
  try {
    check_shape(kind, shape);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

TEST(ScheduleAccessors, CheckRanksAndStages) {
  const Schedule schedule = make_schedule(ScheduleKind::OneFOneB, {2, 1, 4});
  const Program program = Program::validated(lower(schedule), SendMode::Buffered);
  EXPECT_THROW(schedule.of(Rank(2)), std::out_of_range);
  EXPECT_THROW(program.of(Rank(-1)), std::out_of_range);
  EXPECT_THROW(program.peak_in_flight(StageId(2)), std::out_of_range);
  EXPECT_THROW(program.placement().rank_of(StageId(2)), std::out_of_range);
}

TEST(ScheduleInfo, DescribesTables) {
  for (const ScheduleInfo& info : schedule_infos()) {
    const ScheduleShape shape{2, info.only_stages_per_rank.value_or(2), 8};
    const Schedule schedule = make_schedule(info.kind, shape);
    bool input = false, backward = false;
    for (const ActionList& list : schedule.ranks) {
      for (const Action& action : list) {
        input |= action.kind() == ActionKind::BackwardInput;
        backward |= action.kind() == ActionKind::Backward || action.kind() == ActionKind::Overlap || input;
      }
    }
    EXPECT_EQ(info.splits_backward, input) << info.name;
    EXPECT_EQ(info.has_backward, backward) << info.name;
    EXPECT_EQ(schedule.placement, Placement::make(2, shape.num_stages(), info.placement)) << info.name;
    EXPECT_EQ(schedule.name, info.name);
    EXPECT_EQ(parse_schedule_kind(info.name), info.kind);
    EXPECT_EQ(info_of(info.kind).name, info.name);
    EXPECT_EQ(info.default_stages_per_rank, info.only_stages_per_rank.value_or(1)) << info.name;
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(make_rank_schedule(info.kind, shape, Rank(rank)), schedule.of(Rank(rank))) << info.name;
  }
}

TEST(SchedulePlacement, StyleNamesRoundTrip) {
  EXPECT_EQ(to_string(PlacementStyle::Loop), "loop");
  EXPECT_EQ(to_string(PlacementStyle::V), "v");
  for (const PlacementStyle style : {PlacementStyle::Loop, PlacementStyle::V})
    EXPECT_EQ(parse_placement_style(to_string(style)), style);
}

TEST(Schedule, CountsSlotsAndActions) {
  const Action f = Action::forward(StageId(0), MicrobatchId(0));
  const Action b = Action::backward(StageId(0), MicrobatchId(0));
  EXPECT_EQ(slot_count({}), 0u);
  EXPECT_EQ(slot_count({{f}, {Action(), Action(), f}, {}}), 3u);
  EXPECT_EQ(action_count({{f}, {Action(), Action(), f, b}, {}}), 3u);
  EXPECT_FALSE(has_backward({{f, Action()}, {Action::unshard(StageId(0))}}));
  EXPECT_TRUE(has_backward({{f}, {Action::backward_weight(StageId(0), MicrobatchId(0))}}));
}

class ScheduleEveryKind : public testing::TestWithParam<ScheduleKind> {};

TEST_P(ScheduleEveryKind, IsValidForAllLegalCountsUpTo16RanksBy4StagesBy64Microbatches) {
  int checked = 0;
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (int stages = 1; stages <= 4; ++stages) {
      for (int microbatches = 1; microbatches <= 64; ++microbatches) {
        const ScheduleShape shape{ranks, stages, microbatches};
        if (!legal(GetParam(), shape)) continue;
        Schedule schedule = make_schedule(GetParam(), shape);
        const Verdict verdict = validate(schedule);
        ASSERT_TRUE(verdict.valid()) << ranks << " x " << stages << " x " << microbatches << "\n"
                                     << to_string(verdict.findings);
        const Verdict lowered = validate(lower(schedule));
        for (const SendMode mode : kSendModes) {
          ASSERT_TRUE(lowered.safe(mode)) << ranks << " x " << stages << " x " << microbatches << "\n"
                                          << to_string(lowered.all(mode));
        }
        for (ActionList& list : schedule.ranks)
          std::erase_if(list, [](const Action& action) { return action.is_idle(); });
        ASSERT_EQ(make_compact_schedule(GetParam(), shape), schedule)
            << ranks << " x " << stages << " x " << microbatches;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 0) << "no counts are legal";
}

std::string kind_name(const testing::TestParamInfo<ScheduleKind>& info) {
  std::string name(to_string(info.param));
  std::erase(name, '-');
  return name;
}

std::vector<ScheduleKind> all_kinds() {
  std::vector<ScheduleKind> kinds;
  for (const ScheduleInfo& info : schedule_infos()) kinds.push_back(info.kind);
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Generators, ScheduleEveryKind, testing::ValuesIn(all_kinds()), kind_name);

TEST(ScheduleNames, AreCaseInsensitive) {
  EXPECT_EQ(parse_schedule_kind("1f1b"), ScheduleKind::OneFOneB);
  EXPECT_EQ(parse_schedule_kind("zbvZEROBUBBLE"), ScheduleKind::ZBVZeroBubble);
  EXPECT_EQ(parse_schedule_kind("v-half"), ScheduleKind::VHalf);
  for (const ScheduleInfo& info : schedule_infos()) EXPECT_EQ(parse_schedule_kind(info.name), info.kind);
}

TEST(ScheduleNames, UnknownNameListsKnownNames) {
  try {
    parse_schedule_kind("Interleaved2F2B");
    FAIL();
  } catch (const UsageError& error) {
    for (const std::string& name : schedule_names()) EXPECT_THAT(error.what(), HasSubstr(name));
    EXPECT_THAT(error.hint(), HasSubstr("Interleaved1F1B"));
  }
}

std::string shape_error(ScheduleKind kind, const ScheduleShape& shape) {
  return test::error_message<UsageError>([&] { make_schedule(kind, shape); });
}

TEST(ScheduleShapes, RejectsIllegalCountsWithNearestLegalCount) {
  EXPECT_EQ(shape_error(ScheduleKind::ZBVZeroBubble, {4, 3, 8}),
            "ZBVZeroBubble requires exactly 2 stages per rank, not 3\nhint: use 2");
  EXPECT_THAT(shape_error(ScheduleKind::OneFOneB, {4, 2, 8}), HasSubstr("hint: use 1, or Interleaved1F1B"));
  EXPECT_THAT(shape_error(ScheduleKind::DualPipeV, {4, 2, 7}), HasSubstr("hint: use 8 microbatches"));
  EXPECT_EQ(shape_error(ScheduleKind::GPipe, {4, 1, 0}),
            "GPipe does not support 0 microbatches\nhint: use at least 1");
  EXPECT_EQ(shape_error(ScheduleKind::GPipe, {0, 1, 4}),
            "GPipe does not support 0 ranks\nhint: use at least 1");
  EXPECT_EQ(shape_error(ScheduleKind::LoopedBFS, {4, -1, 4}),
            "LoopedBFS does not support -1 stages per rank\nhint: use at least 1");
  EXPECT_THAT(shape_error(ScheduleKind::LoopedBFS, {40'000, 2, 4}), HasSubstr("hint: use at most 1"));
}

TEST(ScheduleShapes, AcceptsLargestCounts) {
  EXPECT_TRUE(legal(ScheduleKind::GPipe, {kMaxStages, 1, kMaxMicrobatches}));
  EXPECT_TRUE(legal(ScheduleKind::LoopedBFS, {1, kMaxStages, 1}));
  EXPECT_TRUE(legal(ScheduleKind::DualPipeV, {4, 2, 8}));
  EXPECT_EQ(shape_error(ScheduleKind::GPipe, {kMaxStages + 1, 1, 4}),
            "GPipe does not support 65536 ranks\nhint: use at most 65535");
  EXPECT_EQ(shape_error(ScheduleKind::LoopedBFS, {2, kMaxStages / 2 + 1, 4}),
            "LoopedBFS does not support 32768 stages per rank\nhint: use at most 32767");
  EXPECT_EQ(shape_error(ScheduleKind::GPipe, {1, 1, kMaxMicrobatches + 1}),
            "GPipe does not support " + std::to_string(kMaxMicrobatches + 1) +
                " microbatches\nhint: use at most " + std::to_string(kMaxMicrobatches));
  EXPECT_EQ(shape_error(ScheduleKind::DualPipeV, {4, 2, 7}),
            "DualPipeV needs at least as many microbatches as stages; microbatches: 7, stages: 8\n"
            "hint: use 8 microbatches");
  EXPECT_EQ(shape_error(ScheduleKind::OneFOneB, {4, 2, 8}),
            "1F1B requires exactly 1 stage per rank, not 2\n"
            "hint: use 1, or Interleaved1F1B for several stages per rank");
}

TEST(ScheduleShapes, RejectsRankOutOfRange) {
  const auto message = [](int rank) {
    return test::error_message<UsageError>([&] {
      make_rank_schedule(ScheduleKind::GPipe, {2, 1, 1}, Rank(rank));
    });
  };
  EXPECT_EQ(message(-1), "invalid rank -1; number of ranks: 2");
  EXPECT_EQ(message(0), "no error");
  EXPECT_EQ(message(1), "no error");
  EXPECT_EQ(message(2), "invalid rank 2; number of ranks: 2");
}

TEST(ScheduleShapes, OnlyIndependentRanksAreGeneratedAlone) {
  EXPECT_TRUE(generates_single_rank(ScheduleKind::OneFOneB));
  EXPECT_FALSE(generates_single_rank(ScheduleKind::VHalf));
}

TEST(SchedulePlacement, ChecksRanksAndCounts) {
  const auto message = [](int ranks, std::vector<Rank> stages) {
    return test::error_message<UsageError>([&] { Placement(ranks, stages); });
  };
  EXPECT_EQ(message(2, {Rank(0), Rank(1)}), "no error");
  EXPECT_EQ(message(2, {Rank(0), Rank(2)}), "stage 1 is placed on rank 2 of 2");
  EXPECT_EQ(message(2, {Rank(-1)}), "stage 0 is placed on rank -1 of 2");
  EXPECT_EQ(Placement::make(1, kMaxStages, PlacementStyle::Loop).num_stages(), kMaxStages);
  EXPECT_EQ(test::error_message<UsageError>([] { Placement::make(1, kMaxStages + 1, PlacementStyle::Loop); }),
            "cannot place 65536 stages on 1 ranks\nhint: use at most 65535 stages");
}

TEST(ScheduleSendMode, NamesRoundTrip) {
  for (const SendMode mode : kSendModes) EXPECT_EQ(parse_send_mode(to_string(mode)), mode);
  EXPECT_EQ(test::error_message<UsageError>([] { parse_send_mode("fast"); }),
            "unknown send mode 'fast'\nhint: valid send modes are buffered, ordered, blocking");
}

TEST(ScheduleIdleSlots, KeepsRestOfDeadlockedLists) {
  // Each rank waits for the next action of the other.
  const Action f00 = Action::forward(StageId(0), MicrobatchId(0)),
               b00 = Action::backward(StageId(0), MicrobatchId(0)),
               f01 = Action::forward(StageId(0), MicrobatchId(1)),
               b01 = Action::backward(StageId(0), MicrobatchId(1)),
               f10 = Action::forward(StageId(1), MicrobatchId(0)),
               b10 = Action::backward(StageId(1), MicrobatchId(0)),
               f11 = Action::forward(StageId(1), MicrobatchId(1)),
               b11 = Action::backward(StageId(1), MicrobatchId(1));
  const Schedule table{
      "", Placement::make(2, 2, PlacementStyle::Loop), 2, {{f00, b00, f01, b01}, {f10, f11, b10, b11}}};
  EXPECT_EQ(to_csv(with_idle_slots(table)), "0F0,,0B0,0F1,0B1\n,1F0,1F1,1B0,1B1\n");
  // Existing idle slots are replaced.
  Schedule valid{
      "", table.placement, 2, {{f00, Action(), Action(), f01, b00, b01}, {f10, b10, f11, Action(), b11}}};
  EXPECT_EQ(to_csv(with_idle_slots(valid)), "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n");
}

TEST(ScheduleShapes, SingleRankMatchesItsRowOfFullTable) {
  for (const ScheduleInfo& info : schedule_infos()) {
    for (const int microbatches : {6, 11}) {
      const ScheduleShape shape{3, info.only_stages_per_rank.value_or(3), microbatches};
      const Schedule all = make_schedule(info.kind, shape);
      for (int rank = 0; rank < shape.ranks; ++rank) {
        EXPECT_EQ(make_rank_schedule(info.kind, shape, Rank(rank)), all.of(Rank(rank))) << info.name;
      }
    }
  }
}

TEST(ScheduleForwardOnly, RunsEveryForwardDepthFirst) {
  const Schedule schedule = make_schedule(ScheduleKind::ForwardOnly, {2, 2, 4});
  EXPECT_EQ(to_csv(schedule), "0F0,0F1,2F0,2F1,0F2,0F3,2F2,2F3\n,1F0,1F1,3F0,3F1,1F2,1F3,3F2,3F3\n");
}

// Slots of equal length for F, I and W, as in the diagrams of the papers.
struct Measured {
  long makespan = 0;
  long longest_span = 0;  // from the first action of a rank to its last
  double in_flight = 0;   // microbatches, until W
};

Measured measure(ScheduleKind kind, const ScheduleShape& shape) {
  const Schedule schedule = with_idle_slots(make_schedule(kind, shape));
  Measured measured;
  for (const ActionList& list : schedule.ranks) {
    long first = 0, held = 0;
    while (list[static_cast<std::size_t>(first)].is_idle()) ++first;
    const auto length = static_cast<long>(list.size());
    measured.makespan = std::max(measured.makespan, length);
    measured.longest_span = std::max(measured.longest_span, length - first);
    for (const Action& action : list) {
      if (action.kind() == ActionKind::Forward) ++held;
      if (action.kind() == ActionKind::BackwardWeight) --held;
      const double share = shape.stages_per_rank;
      measured.in_flight = std::max(measured.in_flight, static_cast<double>(held) / share);
    }
  }
  return measured;
}

TEST(ScheduleZeroBubble, ZB1PHasOneThirdOf1F1BBubbleAndSameMemory) {
  for (int p = 1; p <= 16; ++p) {
    for (const int m : {p, p + 1, 2 * p, 3 * p + 1, 64}) {
      if (m < p) continue;
      const Measured measured = measure(ScheduleKind::ZB1P, {p, 1, m});
      EXPECT_EQ(measured.makespan, 3 * m + (p - 1)) << p << " " << m;  // 1F1B: 3 * (m + p - 1)
      EXPECT_EQ(measured.in_flight, p) << p << " " << m;
    }
  }
}

TEST(ScheduleZeroBubble, ZB2PAndZBVHaveNoBubbleWithinRankSpan) {
  for (int p = 1; p <= 16; ++p) {
    for (const int m : {2 * p - 1, 2 * p, 3 * p + 1, 64}) {
      const Measured zb2p = measure(ScheduleKind::ZB2P, {p, 1, m});
      EXPECT_EQ(zb2p.longest_span, 3 * m) << p << " " << m;
      EXPECT_EQ(zb2p.in_flight, 2 * p - 1) << p << " " << m;
      const Measured zbv = measure(ScheduleKind::ZBVZeroBubble, {p, 2, m});
      EXPECT_EQ(zbv.longest_span, 6 * m) << p << " " << m;
      EXPECT_EQ(zbv.in_flight, p) << p << " " << m;
    }
  }
}

TEST(ScheduleInFlight, MatchesDocumentedFormulas) {
  for (int p = 1; p <= 12; ++p) {
    const int m = 4 * p;
    for (int v = 1; v <= 4; ++v) {
      const Verdict interleaved = validate(make_schedule(ScheduleKind::Interleaved1F1B, {p, v, m}));
      const Verdict zero_bubble = validate(make_schedule(ScheduleKind::InterleavedZeroBubble, {p, v, m}));
      for (int rank = 0; rank < p; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        EXPECT_EQ(interleaved.peak_in_flight_of_rank[at], (v - 1) * p + 2 * (p - 1 - rank) + 1)
            << p << " " << v;
        EXPECT_EQ(zero_bubble.peak_in_flight_of_rank[at], v * p) << p << " " << v;
      }
    }
    const Verdict dual = validate(make_schedule(ScheduleKind::DualPipeV, {p, 2, m}));
    EXPECT_THAT(dual.peak_in_flight_of_rank, testing::Each(2 * p + 1)) << p;
  }
}

TEST(ScheduleControllableMemory, VHalfAndVMinKeepOneHalfAndOneThirdInFlight) {
  for (int p = 1; p <= 32; ++p) {
    const int m = 4 * p;
    const Measured half = measure(ScheduleKind::VHalf, {p, 2, m});
    EXPECT_LE(half.in_flight, (p + 2) / 2.0) << p;
    const Measured minimum = measure(ScheduleKind::VMin, {p, 2, m});
    EXPECT_LE(minimum.in_flight, (p + 4) / 3.0) << p;
    // Less memory costs time, but less than the bubble of 1F1B, which would be 6 * (p - 1) of these slots.
    EXPECT_LE(half.makespan - 6 * m, 4 * (p - 1)) << p;
    EXPECT_LE(minimum.makespan - 6 * m, 5 * (p - 1)) << p;
  }
}

}  // namespace
}  // namespace penstock::schedule
