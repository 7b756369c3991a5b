// Checks the list of each rank on its own, from the first action to the last.
#include "base/text.h"
#include "schedule/dependencies.h"
#include "schedule/validate/checks.h"

#include <algorithm>
#include <string>

namespace penstock::schedule {
namespace {

std::string number(int value) {
  return std::to_string(value);
}

class ListChecker {
 public:
  ListChecker(const Subject& subject, const FactIndex& index, FactTable& yielded, Verdict& verdict,
              Findings& findings)
      : subject_(subject), index_(index), yielded_(yielded), verdict_(verdict), findings_(findings) {
    const auto stages = static_cast<std::size_t>(subject.context.placement.num_stages());
    verdict_.peak_in_flight.assign(stages, 0);
    verdict_.peak_in_flight_of_rank.assign(subject.ranks.size(), 0);
    in_flight_.assign(stages, 0);
    unsharded_.assign(stages, 0);
    uses_shards_.assign(stages, 0);
    reduced_.assign(stages, 0);
    for (const ActionList& list : subject.ranks) {
      for (const Action& action : list) {
        const bool shards = action.kind() == ActionKind::Unshard || action.kind() == ActionKind::Reshard;
        if (shards && in_range(action.stage())) uses_shards_[at(action.stage())] = 1;
      }
    }
  }

  bool run() {
    for (rank_ = 0; rank_ < subject_.ranks.size(); ++rank_) {
      const ActionList& list = subject_.ranks[rank_];
      in_flight_of_rank_ = 0;
      for (step_ = 0; step_ < list.size(); ++step_) {
        const Action& action = list[step_];
        if (action.is_idle()) continue;
        const bool ok = readable(action);
        readable_ = readable_ && ok;
        if (ok) walk(action);
      }
    }
    check_reductions();
    return readable_;
  }

 private:
  static std::size_t at(StageId stage) { return stage.index(); }
  bool in_range(StageId stage) const { return stage.value < subject_.context.placement.num_stages(); }
  bool compute_level() const { return subject_.context.level == ProgramLevel::Compute; }

  void error(std::string message) { findings_.error(findings_.location(rank_, step_), std::move(message)); }

  // Whether everything that the action names exists and belongs to this rank.
  bool readable(const Action& action) {
    bool ok = true;
    for_each_part(action, [&](const Action& part) { ok = part_readable(action, part) && ok; });
    if (ok && compute_level() && !action.is_compute()) {
      error(to_string(action) + " is not allowed in a compute table");
      return false;
    }
    if (ok && action.is_transfer()) return transfer_readable(action);
    return ok;
  }

  bool part_readable(const Action& outer, const Action& part) {
    const ActionContext& context = subject_.context;
    if (!in_range(part.stage())) {
      error(to_string(outer) + " names stage " + number(part.stage().value) + ", but there are only " +
            number(context.placement.num_stages()));
      return false;
    }
    if (part.microbatch().value >= context.microbatches) {
      error(to_string(outer) + " names microbatch " + number(part.microbatch().value) +
            ", but there are only " + number(context.microbatches));
      return false;
    }
    const Rank owner = context.placement.rank_of(part.stage());
    if (owner.index() == rank_) return true;
    error(to_string(outer) + " belongs to stage " + number(part.stage().value) + ", which is on rank " +
          number(owner.value));
    return false;
  }

  bool transfer_readable(const Action& action) {
    const bool forward = action.kind() == ActionKind::SendForward || action.kind() == ActionKind::RecvForward;
    const bool from_here =
        (action.kind() == ActionKind::SendForward || action.kind() == ActionKind::RecvBackward);
    const StageId from = from_here ? action.stage() : action.peer();
    const StageId to = from_here ? action.peer() : action.stage();
    const std::optional<int> edge =
        in_range(action.peer()) ? subject_.context.wiring.find(from, to) : std::nullopt;
    if (!edge) {
      error(to_string(action) + ": there is no edge from stage " + number(from.value) + " to stage " +
            number(to.value));
      return false;
    }
    if (!subject_.context.crosses(*edge)) {
      error(to_string(action) + ": stages " + number(from.value) + " and " + number(to.value) +
            " are on the same rank, so no transfer is needed");
      return false;
    }
    if (!forward && !subject_.training) {
      error(to_string(action) + ": no stage has a backward pass");
      return false;
    }
    return true;
  }

  void walk(const Action& action) {
    check_needs(action);
    check_shards(action);
    for_each_part(action, [&](const Action& part) {
      check_once(part);
      for_each_yield(part, subject_.context, [&](const Fact& fact) { yielded_[index_(fact)] = 1; });
      count_in_flight(part);
    });
  }

  // Checks what the rank itself must have done before. check_deadlock covers the other ranks.
  void check_needs(const Action& action) {
    bool reported = false;
    for_each_need(action, subject_.context, [&](const Fact& fact) {
      if (reported || fact.kind == FactKind::ForwardSent || fact.kind == FactKind::BackwardSent) return;
      if (yielded_[index_(fact)] != 0) return;
      const bool of_stage = fact.kind == FactKind::Output || fact.kind == FactKind::InputGradient ||
                            fact.kind == FactKind::WeightGradient;
      if (of_stage && subject_.rank_of(StageId(fact.index)) != rank_) return;
      error(to_string(action) + " needs " + to_string(fact, subject_.context.wiring) +
            ", which no earlier action of the rank produces");
      reported = true;  // the other needs of a REDUCE_GRAD would repeat the message
    });
  }

  void check_shards(const Action& action) {
    const auto twice = [&](bool wanted, const char* state) {
      char& now = unsharded_[at(action.stage())];
      if ((now != 0) == wanted) error(to_string(action) + ": the stage is already " + state);
      now = wanted ? 1 : 0;
    };
    if (action.kind() == ActionKind::Unshard) twice(true, "unsharded");
    if (action.kind() == ActionKind::Reshard) twice(false, "sharded");
    if (!action.is_compute()) return;
    for_each_part(action, [&](const Action& part) {
      if (uses_shards_[at(part.stage())] == 0 || unsharded_[at(part.stage())] != 0) return;
      error(to_string(action) + " uses stage " + number(part.stage().value) + " while it is sharded");
    });
  }

  void check_once(const Action& part) {
    if (part.kind() == ActionKind::ReduceGrad) {
      if (++reduced_[at(part.stage())] == 2) error(to_string(part) + " appears twice");
      any_reduced_ = true;
      return;
    }
    bool twice = false;
    for_each_yield(part, subject_.context,
                   [&](const Fact& fact) { twice = twice || yielded_[index_(fact)] != 0; });
    if (!twice) return;
    const bool backward = part.kind() == ActionKind::Backward || part.kind() == ActionKind::BackwardInput ||
                          part.kind() == ActionKind::BackwardWeight;
    error(to_string(part) +
          (backward ? " repeats the backward pass of an earlier B, I or W" : " appears twice"));
  }

  void count_in_flight(const Action& part) {
    int change = 0;
    if (part.kind() == ActionKind::Forward) change = 1;
    if (part.kind() == ActionKind::Backward || part.kind() == ActionKind::BackwardWeight) change = -1;
    if (change == 0 || !subject_.training) return;
    int& now = in_flight_[at(part.stage())];
    now += change;
    in_flight_of_rank_ += change;
    verdict_.peak_in_flight[at(part.stage())] = std::max(verdict_.peak_in_flight[at(part.stage())], now);
    verdict_.peak_in_flight_of_rank[rank_] =
        std::max(verdict_.peak_in_flight_of_rank[rank_], in_flight_of_rank_);
  }

  void check_reductions() {
    if (!any_reduced_) return;
    for (std::size_t stage = 0; stage < reduced_.size(); ++stage) {
      if (reduced_[stage] > 0) continue;
      const StageId id(static_cast<std::int64_t>(stage));
      findings_.error(findings_.location(subject_.rank_of(id)),
                      str_cat("stage ", stage, " has no REDUCE_GRAD, but other stages do"));
    }
  }

  const Subject& subject_;
  const FactIndex& index_;
  FactTable& yielded_;
  Verdict& verdict_;
  Findings& findings_;
  std::size_t rank_ = 0, step_ = 0;
  bool readable_ = true;
  bool any_reduced_ = false;
  int in_flight_of_rank_ = 0;
  std::vector<int> in_flight_;
  std::vector<char> unsharded_;    // current state per stage
  std::vector<char> uses_shards_;  // whether a stage has an UNSHARD or RESHARD; otherwise it is not sharded
  std::vector<int> reduced_;
};

}  // namespace

bool check_lists(const Subject& subject, const FactIndex& index, FactTable& yielded, Verdict& verdict,
                 Findings& findings) {
  return ListChecker(subject, index, yielded, verdict, findings).run();
}

}  // namespace penstock::schedule
