// Accumulates the bytes that each action allocates and frees into samples over time.
#include "plan/memory_model.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <cmath>

namespace penstock::plan {
namespace {

struct Change {
  double time = 0;
  std::int64_t bytes = 0;
};

std::int64_t signed_bytes(std::uint64_t bytes) {
  return static_cast<std::int64_t>(bytes);
}

//! Collects the allocations and frees of one rank; each list is ordered by time.
class Ledger {
 public:
  Ledger(const Costs& costs, bool has_backward) : costs_(costs), has_backward_(has_backward) {}

  void record(const schedule::TimedAction& timed) {
    for_each_part(timed.action, [&](const schedule::Action& part) { starts(part, timed.start); });
    for_each_part(timed.action, [&](const schedule::Action& part) { ends(part, timed.end); });
  }

  std::vector<schedule::MemorySample> samples(std::uint64_t resident) const {
    std::vector<Change> all(compute_.size() + stage_actions_.size());
    std::merge(compute_.begin(), compute_.end(), stage_actions_.begin(), stage_actions_.end(), all.begin(),
               [](const Change& a, const Change& b) { return a.time < b.time; });
    check_sum(resident, all);
    std::vector<schedule::MemorySample> result{{0, resident}};
    std::int64_t held = signed_bytes(resident);
    for (const Change& change : all) {
      held += change.bytes;
      // A free followed by an allocation at the same time is not a peak; an allocation followed by a free is.
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
  //! Each cost is bounded, but the sum over many microbatches may overflow.
  static void check_sum(std::uint64_t resident, const std::vector<Change>& changes) {
    auto sum = static_cast<double>(resident);
    for (const Change& change : changes) sum += std::abs(static_cast<double>(change.bytes));
    if (sum > 9e18) throw UsageError("the total bytes of a rank's microbatches overflow 63 bits");
  }

  const StageCosts& of(const schedule::Action& action) const { return costs_.stages[action.stage().index()]; }
  void change(std::vector<Change>& list, double time, std::int64_t bytes) {
    if (bytes != 0) list.push_back({time, bytes});
  }

  void starts(const schedule::Action& action, double time) {
    const StageCosts& stage = of(action);
    switch (action.kind()) {
      case schedule::ActionKind::Forward:
        if (stage.recompute && has_backward_) {
          // The forward pass needs all activations until it ends.
          change(compute_, time, signed_bytes(stage.activation_bytes + stage.weight_bytes));
        } else {
          change(compute_, time, signed_bytes(stage.in_flight_bytes()));
        }
        return;
      case schedule::ActionKind::Backward:
      case schedule::ActionKind::BackwardInput:
        if (stage.recompute)
          change(compute_, time, signed_bytes(stage.activation_bytes + stage.weight_bytes));
        return;
      case schedule::ActionKind::Unshard:
        change(stage_actions_, time, signed_bytes(stage.unsharded_bytes));
        return;
      case schedule::ActionKind::Idle:
      case schedule::ActionKind::BackwardWeight:
      case schedule::ActionKind::Overlap:
      case schedule::ActionKind::SendForward:
      case schedule::ActionKind::RecvForward:
      case schedule::ActionKind::SendBackward:
      case schedule::ActionKind::RecvBackward:
      case schedule::ActionKind::Reshard:
      case schedule::ActionKind::ReduceGrad:
        break;
    }
  }

  void ends(const schedule::Action& action, double time) {
    const StageCosts& stage = of(action);
    const std::int64_t kept = stage.recompute ? signed_bytes(stage.input_bytes) : 0;
    const std::int64_t activations = signed_bytes(stage.activation_bytes);
    const std::int64_t for_weight = signed_bytes(stage.weight_bytes);
    switch (action.kind()) {
      case schedule::ActionKind::Forward:
        if (!has_backward_) change(compute_, time, -signed_bytes(stage.in_flight_bytes()));
        if (has_backward_ && stage.recompute) change(compute_, time, kept - activations - for_weight);
        return;
      case schedule::ActionKind::Backward:
        change(compute_, time, -kept - activations - for_weight);
        return;
      case schedule::ActionKind::BackwardInput:
        change(compute_, time, -kept - activations);
        return;
      case schedule::ActionKind::BackwardWeight:
        change(compute_, time, -for_weight);
        return;
      case schedule::ActionKind::Reshard:
        change(compute_, time, -signed_bytes(stage.unsharded_bytes));
        return;
      case schedule::ActionKind::Idle:
      case schedule::ActionKind::Overlap:
      case schedule::ActionKind::SendForward:
      case schedule::ActionKind::RecvForward:
      case schedule::ActionKind::SendBackward:
      case schedule::ActionKind::RecvBackward:
      case schedule::ActionKind::Unshard:
      case schedule::ActionKind::ReduceGrad:
        break;
    }
  }

  const Costs& costs_;
  bool has_backward_;
  std::vector<Change> compute_, stage_actions_;
};

}  // namespace

std::vector<schedule::MemorySample> memory_over_time(std::span<const schedule::TimedAction> timed,
                                                     const std::vector<StageId>& stages, const Costs& costs,
                                                     bool has_backward) {
  std::uint64_t resident = 0;
  for (const StageId stage : stages) resident += costs.stages[stage.index()].resident_bytes();
  Ledger ledger(costs, has_backward);
  for (const schedule::TimedAction& action : timed) ledger.record(action);
  return ledger.samples(resident);
}

}  // namespace penstock::plan
