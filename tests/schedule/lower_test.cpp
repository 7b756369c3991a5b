// Each lowering pass on its own. (golden_test.cpp compares their combination with the reference.)
#include "schedule/dependencies.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

namespace penstock::schedule {
namespace {

using testing::HasSubstr;

Draft draft_of(const std::string& text, std::vector<StageEdge> skips = {}) {
  std::istringstream in(text);
  return to_draft(read_csv(in).schedule(), std::move(skips));
}

TEST(SchedulePasses, RunByNameAndUnknownNameListsThem) {
  EXPECT_EQ(to_csv(run_pass("merge-backward", draft_of("0F0,0I0,0W0\n"))), "0F0,0B0\n");
  try {
    run_pass("merge", draft_of("0F0,0B0\n"));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("merge-backward, unshard, reduce-grad, send-recv, defer-receives, reorder"));
  }
}

TEST(ScheduleMergeBackward, MergesOnlyAdjacentInputAndWeightOfSameMicrobatch) {
  EXPECT_EQ(to_csv(merge_backward(draft_of("0F0,0F1,0I0,,0W0,0I1,0F2,0W1,0I2,0W2\n"))),
            "0F0,0F1,0B0,0I1,0F2,0W1,0B2\n");
  EXPECT_EQ(to_csv(merge_backward(draft_of("0F0,0F1,0I0,0I1,0W0,0W1\n"))), "0F0,0F1,0I0,0I1,0W0,0W1\n");
}

TEST(ScheduleMergeBackward, StopsAtEndOfList) {
  EXPECT_EQ(to_csv(merge_backward(draft_of("0F0,0F1,0I0,0W0\n"))), "0F0,0F1,0B0\n");
  // An I at the end of the list is kept, even if its W was once stored in the memory behind it.
  Draft draft = draft_of("0F0,0F1,0I0,0W0\n");
  draft.ranks[0].pop_back();
  EXPECT_EQ(to_csv(merge_backward(draft)), "0F0,0F1,0I0\n");
  Draft moved = draft_of("0F0,0I0,0W0\n");
  moved.ranks[0].pop_back();
  EXPECT_EQ(merge_backward(std::move(moved)).ranks[0].size(), 2u);
}

TEST(ScheduleLower, SupportsMoreThan64Ranks) {
  for (const int ranks : {63, 64, 65, 130}) {
    const Draft draft = lower(make_schedule("1F1B", {ranks, 1, 3}));
    EXPECT_TRUE(validate(draft).safe(SendMode::Blocking)) << ranks;
  }
}

TEST(ScheduleMergeBackward, KeepsEveryZeroBubbleScheduleValid) {
  for (const ScheduleInfo& info : schedule_infos()) {
    const Draft draft =
        lower(make_schedule(info.kind, {4, info.default_stages_per_rank, 12}), {.merge_backward = true});
    EXPECT_TRUE(validate(draft).safe(SendMode::Blocking)) << info.name;
  }
}

TEST(ScheduleUnshard, PrefetchesNextStagesAndReshardsOthers) {
  EXPECT_EQ(to_csv(add_unshard(draft_of("0F0,1F0,2F0,3F0,3B0,2B0,1B0,0B0\n"), {.max_active_stages = 2})),
            "0UNSHARD,1UNSHARD,0F0,0RESHARD,2UNSHARD,1F0,1RESHARD,3UNSHARD,2F0,3F0,3B0,3RESHARD,1UNSHARD,2B0,"
            "2RESHARD,"
            "0UNSHARD,1B0,1RESHARD,0B0,0RESHARD\n");
}

TEST(ScheduleUnshard, KeepsAtLeastOneStageActive) {
  const std::string one = to_csv(add_unshard(draft_of("0F0,1F0,1B0,0B0\n"), {.max_active_stages = 1}));
  EXPECT_EQ(one, "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0,0RESHARD\n");
  EXPECT_EQ(to_csv(add_unshard(draft_of("0F0,1F0,1B0,0B0\n"), {.max_active_stages = 0})), one);
  // Both stages of an overlap are active, even beyond the limit.
  EXPECT_EQ(to_csv(add_unshard(draft_of("0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0B1\n"),
                               {.max_active_stages = 1})),
            "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1RESHARD,0UNSHARD,0F1,0RESHARD,1UNSHARD,1B0,0UNSHARD,"
            "(1F1;0B0)OVERLAP_F_B,0RESHARD,1B1,1RESHARD,0UNSHARD,0B1,0RESHARD\n");
}

TEST(ScheduleLower, RunsOnlyEnabledPasses) {
  const Schedule schedule{"", Placement::make(1, 1, PlacementStyle::Loop), 1,
                          draft_of("0F0,0I0,0W0\n").ranks};
  EXPECT_EQ(to_csv(lower(schedule, {.shard = false, .reduce_grad = false})), "0F0,0I0,0W0\n");
  EXPECT_EQ(to_csv(lower(schedule)), "0UNSHARD,0F0,0I0,0W0,0REDUCE_GRAD,0RESHARD\n");
  EXPECT_EQ(to_csv(lower(schedule, {.merge_backward = true, .shard = false})), "0F0,0B0,0REDUCE_GRAD\n");
}

TEST(ScheduleDependencies, FactsHaveText) {
  const Wiring wiring(3, {{StageId(0), StageId(2)}});
  const auto text = [&](FactKind kind, int index) {
    return to_string(Fact{kind, index, MicrobatchId(4)}, wiring);
  };
  EXPECT_EQ(text(FactKind::Output, 1), "the output of stage 1 of microbatch 4");
  EXPECT_EQ(text(FactKind::InputGradient, 1), "the input gradient of stage 1 of microbatch 4");
  EXPECT_EQ(text(FactKind::WeightGradient, 1), "the weight gradient of stage 1 of microbatch 4");
  for (const FactKind kind : {FactKind::ForwardSent, FactKind::ForwardReceived})
    EXPECT_EQ(text(kind, 2), "the output of stage 0 of microbatch 4, received by stage 2");
  for (const FactKind kind : {FactKind::BackwardSent, FactKind::BackwardReceived})
    EXPECT_EQ(text(kind, 2), "the input gradient of stage 2 of microbatch 4, received by stage 0");
}

TEST(ScheduleReduceGrad, FollowsLastBackwardOfStage) {
  EXPECT_EQ(to_csv(add_reduce_grad(draft_of("0F0,0F1,1F0,1F1,1B0,1B1,0I0,0I1,0W0,0W1\n"))),
            "0F0,0F1,1F0,1F1,1B0,1B1,1REDUCE_GRAD,0I0,0I1,0W0,0W1,0REDUCE_GRAD\n");
  EXPECT_EQ(to_csv(add_reduce_grad(draft_of("0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0B1\n"))),
            "0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,1REDUCE_GRAD,0B1,0REDUCE_GRAD\n");
}

TEST(ScheduleSendRecv, InsertsBothEndsTogether) {
  EXPECT_EQ(to_csv(add_send_recv(draft_of("0F0,0B0\n1F0,1B0\n"))),
            "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
}

TEST(ScheduleSendRecv, SendsSkipValuesDirectlyToConsumer) {
  EXPECT_EQ(to_csv(add_send_recv(draft_of("0F0,0B0\n1F0,1B0\n2F0,2B0\n", {{StageId(0), StageId(2)}}))),
            "0F0,0SEND_F0,0SEND_F0>2,0RECV_B0<2,0RECV_B0,0B0\n"
            "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0\n"
            "2RECV_F0<0,2RECV_F0,2F0,2B0,2SEND_B0,2SEND_B0>0\n");
}

TEST(ScheduleSendRecv, SendsValueToBothConsumersAndReturnsBothGradients) {
  const Draft draft = add_send_recv(
      draft_of("0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0\n", {{StageId(0), StageId(2)}, {StageId(0), StageId(3)}}));
  EXPECT_EQ(to_csv(draft),
            "0F0,0SEND_F0,0SEND_F0>2,0SEND_F0>3,0RECV_B0<3,0RECV_B0<2,0RECV_B0,0B0\n"
            "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0\n"
            "2RECV_F0<0,2RECV_F0,2F0,2SEND_F0,2RECV_B0,2B0,2SEND_B0,2SEND_B0>0\n"
            "3RECV_F0<0,3RECV_F0,3F0,3B0,3SEND_B0,3SEND_B0>0\n");
  const MicrobatchId batch(0);
  for (const int user : {1, 2, 3}) {
    Draft without = draft;  // both ends of one gradient's transfer
    std::erase(without.ranks[0], Action::recv_backward(StageId(0), batch, StageId(user)));
    std::erase(without.ranks[static_cast<std::size_t>(user)],
               Action::send_backward(StageId(user), batch, StageId(0)));
    ASSERT_EQ(without.ranks[0].size() + 1, draft.ranks[0].size());
    for (const SendMode mode : kSendModes)
      EXPECT_FALSE(validate(without).safe(mode)) << "the gradient from stage " << user;
  }
}

TEST(ScheduleSendRecv, SkipEdgesWithinRankNeedNoTransfer) {
  // Two ranks; stages 0 and 2 are on rank 0.
  const Schedule schedule = make_schedule(ScheduleKind::LoopedBFS, {2, 2, 2});
  const std::string text = to_csv(lower(schedule, {.skips = {{StageId(0), StageId(2)}}}));
  EXPECT_EQ(text, to_csv(lower(schedule)));
}

TEST(ScheduleSendRecv, RejectsUnrunnableAndAlreadyLoweredTables) {
  try {
    add_send_recv(draft_of("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"));
    FAIL();
  } catch (const ScheduleError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 stops at 0B0"));
    EXPECT_THAT(error.what(), HasSubstr("deadlock: "));
  }
  EXPECT_ERROR(add_send_recv(lower(make_schedule(ScheduleKind::GPipe, {2, 1, 1}))), UsageError,
               "the lists already contain transfers");
}

TEST(ScheduleSendRecv, SkipEdgesAreSafeInEveryScheduleAndMode) {
  for (const ScheduleInfo& info : schedule_infos()) {
    for (int ranks = 2; ranks <= 5; ++ranks) {
      const ScheduleShape shape{ranks, std::max(2, info.default_stages_per_rank), 2 * ranks + 1};
      const ScheduleShape fitted{ranks, info.only_stages_per_rank.value_or(shape.stages_per_rank),
                                 shape.microbatches};
      LowerOptions options;
      for (int from = 0; from + 2 < fitted.num_stages(); ++from) {
        for (int to = from + 2; to < fitted.num_stages(); ++to)
          options.skips.push_back({StageId(from), StageId(to)});
      }
      const Verdict verdict = validate(lower(make_schedule(info.kind, fitted), options));
      EXPECT_TRUE(verdict.safe(SendMode::Blocking) && verdict.safe(SendMode::Ordered))
          << info.name << " " << ranks << "\n"
          << to_string(verdict.all(SendMode::Blocking));
    }
  }
}

// A receive is directly before its use, or before the next transfer of its pair, with only receives in
// between.
void expect_late(const Draft& draft) {
  const ActionContext context = context_of(draft);
  for (const ActionList& list : draft.ranks) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!list[i].is_recv()) continue;
      std::size_t next = i + 1;
      bool due = false;
      const auto peer = draft.placement.rank_of(list[i].peer());
      for (; next < list.size() && list[next].is_recv(); ++next) {
        due = due || draft.placement.rank_of(list[next].peer()) == peer;
      }
      ASSERT_LT(next, list.size());
      const Action& user = list[next];
      if (user.is_send()) due = due || draft.placement.rank_of(user.peer()) == peer;
      const std::vector<Fact> given = yields(list[i], context);
      for (const Fact& need : dependencies(user, context)) due = due || need == given.front();
      EXPECT_TRUE(due) << to_string(list[i]) << " before " << to_string(user);
    }
  }
}

TEST(ScheduleDeferReceives, DelaysReceivesAndKeepsOrderPerPair) {
  for (const ScheduleInfo& info : schedule_infos()) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (const int microbatches : {2 * ranks, 2 * ranks + 1, 4 * ranks}) {
        const int stages = info.only_stages_per_rank.value_or(2);
        const Draft draft =
            lower(make_schedule(info.kind, {ranks, stages, microbatches}), {.defer_receives = true});
        const Verdict verdict = validate(draft);
        EXPECT_TRUE(verdict.safe(SendMode::Buffered)) << info.name;
        EXPECT_TRUE(verdict.safe(SendMode::Ordered)) << info.name << "\n"
                                                     << to_string(verdict.all(SendMode::Ordered));
        expect_late(draft);
      }
    }
  }
}

TEST(ScheduleReorder, MakesDeferredReceivesSafeForBlockingSends) {
  const Schedule schedule = make_schedule(ScheduleKind::Interleaved1F1B, {4, 2, 8});
  const Draft deferred = lower(schedule, {.defer_receives = true});
  EXPECT_FALSE(validate(deferred).safe(SendMode::Blocking));
  EXPECT_TRUE(validate(reorder(deferred)).safe(SendMode::Blocking));
  EXPECT_EQ(reorder(deferred).ranks, lower(schedule).ranks);
}

TEST(ScheduleWiring, FindsItsEdgesAndNoOthers) {
  const Wiring wiring(4, {{StageId(0), StageId(3)}, {StageId(0), StageId(2)}});
  const auto find = [&](int from, int to) { return wiring.find(StageId(from), StageId(to)); };
  EXPECT_EQ(wiring.edges(), 5);
  for (int s = 0; s < 3; ++s) EXPECT_EQ(find(s, s + 1), s);
  EXPECT_EQ(find(0, 2), 3);  // skip edges follow, in ascending order
  EXPECT_EQ(find(0, 3), 4);
  EXPECT_EQ(find(1, 3), std::nullopt);
  EXPECT_EQ(find(1, 0), std::nullopt);
  EXPECT_EQ(find(-1, 0), std::nullopt);
  EXPECT_EQ(find(3, 4), std::nullopt);
  EXPECT_EQ(find(4, 5), std::nullopt);
  EXPECT_EQ(wiring.skips().size(), 2u);
  EXPECT_TRUE(Wiring(1).skips().empty());
  EXPECT_EQ(Wiring(0).find(StageId(0), StageId(1)), std::nullopt);
}

TEST(ScheduleWiring, RejectsInvalidEdges) {
  const auto text = [](const std::vector<StageEdge>& skips) {
    return test::error_message<UsageError>([&] { Wiring(4, skips); });
  };
  EXPECT_EQ(text({{StageId(0), StageId(1)}}),
            "the skip edge 0 -> 1 connects adjacent stages\nhint: leave it out: each stage always feeds the "
            "next one");
  EXPECT_EQ(text({{StageId(2), StageId(0)}}), "the skip edge 2 -> 0 does not lead to a later stage");
  EXPECT_THAT(text({{StageId(2), StageId(2)}}), HasSubstr("does not lead to a later stage"));
  EXPECT_EQ(text({{StageId(0), StageId(4)}}), "the skip edge 0 -> 4 is not within the 4 stages");
  EXPECT_EQ(text({{StageId(-1), StageId(2)}}), "the skip edge -1 -> 2 is not within the 4 stages");
  EXPECT_THAT(text({{StageId(0), StageId(2)}, {StageId(0), StageId(2)}}), HasSubstr("twice"));
  EXPECT_EQ(text({{StageId(0), StageId(2)}, {StageId(0), StageId(3)}}), "no error");
}

}  // namespace
}  // namespace penstock::schedule
