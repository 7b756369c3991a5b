// Bytes follow from the order of a rank's actions: forwards take, backwards give back.
// Follows what each action takes and gives back, and turns it into samples over time.
#include "memory_model.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

struct Change {
  double time = 0;
  std::int64_t bytes = 0;
};

std::int64_t signed_bytes(std::uint64_t bytes) {
  return static_cast<std::int64_t>(bytes);
}

//! Collects the changes of one rank, each list in order of time.
class Ledger {
 public:
  Ledger(const Costs& costs, bool has_backward) : costs_(costs), has_backward_(has_backward) {}

  void record(const TimedAction& timed) {
    for_each_part(timed.action, [&](const Action& part) { starts(part, timed.start); });
    for_each_part(timed.action, [&](const Action& part) { ends(part, timed.end); });
  }

  std::vector<MemorySample> samples(std::uint64_t resident) const {
    std::vector<Change> all(compute_.size() + chores_.size());
    std::merge(compute_.begin(), compute_.end(), chores_.begin(), chores_.end(), all.begin(),
               [](const Change& a, const Change& b) { return a.time < b.time; });
    check_sum(resident, all);
    std::vector<MemorySample> result{{0, resident}};
    std::int64_t held = signed_bytes(resident);
    for (const Change& change : all) {
      held += change.bytes;
      // What is freed and taken again in one moment makes no peak; what is taken and freed again does.
      const auto now = static_cast<std::uint64_t>(held);
      if (result.back().time == change.time && change.bytes > 0) {
        result.back().bytes = now;
      } else {
        result.push_back({change.time, now});
      }
    }
    return result;
  }

 private:
  //! Each cost is bounded, but there may be many microbatches.
  static void check_sum(std::uint64_t resident, const std::vector<Change>& changes) {
    auto sum = static_cast<double>(resident);
    for (const Change& change : changes) sum += std::abs(static_cast<double>(change.bytes));
    if (sum > 9e18) throw UsageError("the bytes of a rank's microbatches are too many to add up");
  }

  const StageCosts& of(const Action& action) const {
    return costs_.stages[static_cast<std::size_t>(action.stage().value)];
  }
  void change(std::vector<Change>& list, double time, std::int64_t bytes) {
    if (bytes != 0) list.push_back({time, bytes});
  }

  void starts(const Action& action, double time) {
    const StageCosts& stage = of(action);
    switch (action.kind()) {
      case ActionKind::Forward:
        if (stage.recompute && has_backward_) {
          // The forward itself needs what it drops at its end.
          change(compute_, time, signed_bytes(stage.activation_bytes + stage.weight_bytes));
        } else {
          change(compute_, time, signed_bytes(stage.in_flight_bytes()));
        }
        return;
      case ActionKind::Backward:
      case ActionKind::BackwardInput:
        if (stage.recompute)
          change(compute_, time, signed_bytes(stage.activation_bytes + stage.weight_bytes));
        return;
      case ActionKind::Unshard:
        change(chores_, time, signed_bytes(stage.unsharded_bytes));
        return;
      case ActionKind::Idle:
      case ActionKind::BackwardWeight:
      case ActionKind::Overlap:
      case ActionKind::SendForward:
      case ActionKind::RecvForward:
      case ActionKind::SendBackward:
      case ActionKind::RecvBackward:
      case ActionKind::Reshard:
      case ActionKind::ReduceGrad:
        return;
    }
  }

  void ends(const Action& action, double time) {
    const StageCosts& stage = of(action);
    const std::int64_t kept = stage.recompute ? signed_bytes(stage.input_bytes) : 0;
    const std::int64_t activations = signed_bytes(stage.activation_bytes);
    const std::int64_t for_weight = signed_bytes(stage.weight_bytes);
    switch (action.kind()) {
      case ActionKind::Forward:
        if (!has_backward_) change(compute_, time, -signed_bytes(stage.in_flight_bytes()));
        if (has_backward_ && stage.recompute) change(compute_, time, kept - activations - for_weight);
        return;
      case ActionKind::Backward:
        change(compute_, time, -kept - activations - for_weight);
        return;
      case ActionKind::BackwardInput:
        change(compute_, time, -kept - activations);
        return;
      case ActionKind::BackwardWeight:
        change(compute_, time, -for_weight);
        return;
      case ActionKind::Reshard:
        change(compute_, time, -signed_bytes(stage.unsharded_bytes));
        return;
      case ActionKind::Idle:
      case ActionKind::Overlap:
      case ActionKind::SendForward:
      case ActionKind::RecvForward:
      case ActionKind::SendBackward:
      case ActionKind::RecvBackward:
      case ActionKind::Unshard:
      case ActionKind::ReduceGrad:
        return;
    }
  }

  const Costs& costs_;
  bool has_backward_;
  std::vector<Change> compute_, chores_;
};

}  // namespace

std::vector<MemorySample> memory_over_time(std::span<const TimedAction> timed,
                                           const std::vector<StageId>& stages, const Costs& costs,
                                           bool has_backward) {
  std::uint64_t resident = 0;
  for (const StageId stage : stages)
    resident += costs.stages[static_cast<std::size_t>(stage.value)].resident_bytes();
  Ledger ledger(costs, has_backward);
  for (const TimedAction& action : timed) ledger.record(action);
  return ledger.samples(resident);
}

}  // namespace penstock
