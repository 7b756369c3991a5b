// Thousands of random changes to valid programs: an independent execution confirms that what the validator
// accepts is safe, and that what it rejects fails. In both directions, in every send mode.
#include "schedule/interpreter.h"

#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace penstock::schedule {
namespace {

using testing_support::runs_to_the_end;

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool chance(int one_in) { return below(one_in) == 0; }

  Draft draft() {
    const auto infos = schedule_infos();
    while (true) {
      const ScheduleInfo& info = infos[static_cast<std::size_t>(below(static_cast<int>(infos.size())))];
      const int stages = info.only_stages_per_rank.value_or(1 + below(3));
      const ScheduleShape shape{1 + below(4), stages, 1 + below(9)};
      if (info.kind == ScheduleKind::DualPipeV && shape.microbatches < shape.num_stages()) continue;
      LowerOptions options;
      options.merge_backward = chance(4);
      options.shard = chance(2);
      options.reduce_grad = chance(2);
      options.defer_receives = chance(3);
      if (shape.num_stages() > 2 && chance(2)) {
        const int from = below(shape.num_stages() - 2);
        options.skips.push_back({StageId(from), StageId(from + 2 + below(shape.num_stages() - from - 2))});
      }
      return lower(make_schedule(info.kind, shape), options);
    }
  }

  // One small change, as by a typo or a faulty pass.
  void mutate(Draft& draft) {
    ActionList& list = draft.ranks[static_cast<std::size_t>(below(static_cast<int>(draft.ranks.size())))];
    if (list.empty()) return;
    const int size = static_cast<int>(list.size());
    const auto at = [&](int index) -> Action& { return list[static_cast<std::size_t>(index)]; };
    const int here = below(size);
    switch (below(8)) {
      case 0:
        std::swap(at(here), at(below(size)));
        break;
      case 1:
      case 2:
        if (here + 1 < size) std::swap(at(here), at(here + 1));
        break;
      case 3:
        list.erase(list.begin() + here);
        break;
      case 4:
        list.insert(list.begin() + below(size + 1), at(here));
        break;
      case 5:
        at(here) = changed(at(here), draft);
        break;
      case 6: {  // moved within the rank
        const Action action = at(here);
        list.erase(list.begin() + here);
        list.insert(list.begin() + below(size), action);
        break;
      }
      default: {  // moved to another rank
        const Action action = at(here);
        list.erase(list.begin() + here);
        ActionList& other =
            draft.ranks[static_cast<std::size_t>(below(static_cast<int>(draft.ranks.size())))];
        other.insert(other.begin() + below(static_cast<int>(other.size()) + 1), action);
        break;
      }
    }
  }

 private:
  Action changed(const Action& action, const Draft& draft) {
    const StageId stage(chance(2) ? action.stage().value : below(draft.num_stages() + 1));
    const MicrobatchId batch(chance(2) ? action.microbatch().value : below(draft.microbatches + 1));
    const StageId peer(std::max(0, stage.value + (chance(2) ? 1 : -1)));
    switch (below(11)) {
      case 0:
        return Action::forward(stage, batch);
      case 1:
        return Action::backward(stage, batch);
      case 2:
        return Action::backward_input(stage, batch);
      case 3:
        return Action::backward_weight(stage, batch);
      case 4:
        return Action::send_forward(stage, batch, peer);
      case 5:
        return Action::recv_forward(stage, batch, peer);
      case 6:
        return Action::send_backward(stage, batch, peer);
      case 7:
        return Action::recv_backward(stage, batch, peer);
      case 8:
        return Action::unshard(stage);
      case 9:
        return Action::reshard(stage);
      default:
        return Action::reduce_grad(stage);
    }
  }

  std::mt19937 random_;
};

TEST(ScheduleMutations, ValidatorAgreesWithInterpreterInEveryMode) {
  int harmless = 0, refused = 0, only_some_modes = 0;
  for (unsigned seed = 1; seed <= 12'000; ++seed) {
    Mutator mutator(seed);
    Draft draft = mutator.draft();
    const Draft before = draft;
    for (int changes = 1 + mutator.below(2); changes > 0; --changes) mutator.mutate(draft);
    const Verdict verdict = validate(draft);
    int safe = 0;
    for (const SendMode mode : kSendModes) {
      ASSERT_EQ(verdict.safe(mode), runs_to_the_end(draft, mode))
          << "seed " << seed << ", " << before.name << ", " << to_string(mode) << " sends\nbefore:\n"
          << to_csv(before) << "after:\n"
          << to_csv(draft) << "findings:\n"
          << to_string(verdict.all(mode));
      safe += verdict.safe(mode) ? 1 : 0;
    }
    harmless += safe == 3 ? 1 : 0;
    refused += safe == 0 ? 1 : 0;
    only_some_modes += safe == 1 || safe == 2 ? 1 : 0;
  }
  // The sweep must reach all three outcomes to be meaningful.
  EXPECT_GT(harmless, 500);
  EXPECT_GT(refused, 5'000);
  EXPECT_GT(only_some_modes, 200);
}

TEST(ScheduleMutations, ValidatorAgreesWithInterpreterOnComputeTables) {
  int harmless = 0, refused = 0;
  for (unsigned seed = 1; seed <= 8'000; ++seed) {
    Mutator mutator(seed);
    Draft draft = mutator.draft();
    draft.ranks = compute_only(draft).ranks;
    for (int changes = 1 + mutator.below(2); changes > 0; --changes) mutator.mutate(draft);
    const Schedule table{draft.name, draft.placement, draft.microbatches, draft.ranks};
    const Verdict verdict = validate(table, draft.wiring);
    ASSERT_EQ(verdict.valid(), runs_to_the_end(table, draft.wiring))
        << "seed " << seed << ", " << draft.name << "\n"
        << to_csv(table) << to_string(verdict.findings);
    (verdict.valid() ? harmless : refused) += 1;
    // Lowering accepts what the validator accepts, and the result is safe.
    if (verdict.valid()) {
      ASSERT_TRUE(runs_to_the_end(add_send_recv(draft), SendMode::Blocking)) << "seed " << seed;
    }
  }
  EXPECT_GT(harmless, 400);
  EXPECT_GT(refused, 4'000);
}

TEST(ScheduleMutations, UnchangedProgramsComplete) {
  for (unsigned seed = 1; seed <= 500; ++seed) {
    const Draft draft = Mutator(seed).draft();
    EXPECT_TRUE(runs_to_the_end(draft, SendMode::Buffered)) << seed;
    EXPECT_TRUE(runs_to_the_end(draft, SendMode::Ordered)) << seed;
  }
}

// Reordering only requires that the computations can run; its result is safe in every mode.
TEST(ScheduleMutations, ReorderMakesRunnableProgramsSafeInEveryMode) {
  int repaired = 0;
  for (unsigned seed = 1; seed <= 2'000; ++seed) {
    Mutator mutator(seed);
    Draft draft = mutator.draft();
    for (ActionList& list : draft.ranks) {  // shuffle the positions of transfers
      for (int changes = 0; changes < 6 && !list.empty(); ++changes) {
        Action& a = list[static_cast<std::size_t>(mutator.below(static_cast<int>(list.size())))];
        Action& b = list[static_cast<std::size_t>(mutator.below(static_cast<int>(list.size())))];
        if (a.is_transfer() && b.is_transfer()) std::swap(a, b);
      }
    }
    if (!runs_to_the_end(draft, SendMode::Blocking)) ++repaired;
    EXPECT_TRUE(runs_to_the_end(reorder(draft), SendMode::Blocking)) << seed;
    EXPECT_TRUE(runs_to_the_end(reorder(draft), SendMode::Ordered)) << seed;
  }
  EXPECT_GT(repaired, 500);
}

}  // namespace
}  // namespace penstock::schedule
