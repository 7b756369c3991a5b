// The dependency rule: which facts an action needs before it may run, and which facts it yields. Lowering,
// validation, simulation, drawing and the executor's checks all use this single definition.
#pragma once

#include <penstock/schedule/action.h>
#include <penstock/schedule/program.h>
#include <penstock/schedule/stage_placement.h>
#include <penstock/schedule/wiring.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::schedule {

//! A condition that becomes true once per step and stays true. (Whether a stage is unsharded is not a fact,
//! because it can change back; the validator tracks it separately.)
enum class FactKind : std::uint8_t {
  Output,            //!< stage: its forward pass is done
  InputGradient,     //!< stage: computed by an I or a B
  WeightGradient,    //!< stage: computed by a W or a B
  ForwardSent,       //!< edge: the send of its value is posted
  ForwardReceived,   //!< edge: its value has been received
  BackwardSent,      //!< edge: the send of its gradient is posted
  BackwardReceived,  //!< edge: its gradient has been received
};

struct Fact {
  FactKind kind = FactKind::Output;
  int index = 0;  //!< of the stage or the edge, depending on the kind
  MicrobatchId microbatch;

  friend constexpr bool operator==(const Fact&, const Fact&) = default;
};

//! `the output of stage 1 of microbatch 0, received by stage 2`, for error messages.
std::string to_string(const Fact& fact, const Wiring& wiring);

//! What the needs and yields of an action depend on: edges, placement, number of microbatches and level.
struct ActionContext {
  const Wiring& wiring;
  const Placement& placement;
  int microbatches;
  ProgramLevel level;

  bool crosses(int edge) const {
    const StageEdge& ends = wiring.edge(edge);
    return level == ProgramLevel::Lowered && placement.rank_of(ends.from) != placement.rank_of(ends.to);
  }
};

//! The context of the actions of lowered lists. Refers to the draft, which must outlive it.
inline ActionContext context_of(const Draft& draft) {
  return {draft.wiring, draft.placement, draft.microbatches, ProgramLevel::Lowered};
}

//! Calls `visit(fact)` for every fact that must be true before `action` may run. The stages of the action
//! must exist in the placement (the validator checks this first). A transfer without an edge needs nothing.
template <class Visit>
void for_each_need(const Action& action, const ActionContext& context, Visit&& visit) {
  const Wiring& wiring = context.wiring;
  const MicrobatchId microbatch = action.microbatch();
  const auto transfer = [&](StageId from, StageId to, FactKind edge_fact) {
    if (const auto edge = wiring.find(from, to)) visit(Fact{edge_fact, *edge, microbatch});
  };
  switch (action.kind()) {
    case ActionKind::Forward:
      for (const int edge : wiring.into(action.stage())) {
        if (context.crosses(edge)) {
          visit(Fact{FactKind::ForwardReceived, edge, microbatch});
        } else {
          visit(Fact{FactKind::Output, wiring.edge(edge).from.value, microbatch});
        }
      }
      return;
    case ActionKind::Backward:
    case ActionKind::BackwardInput:
      visit(Fact{FactKind::Output, action.stage().value, microbatch});
      for (const int edge : wiring.out_of(action.stage())) {
        if (context.crosses(edge)) {
          visit(Fact{FactKind::BackwardReceived, edge, microbatch});
        } else {
          visit(Fact{FactKind::InputGradient, wiring.edge(edge).to.value, microbatch});
        }
      }
      return;
    case ActionKind::BackwardWeight:
      visit(Fact{FactKind::InputGradient, action.stage().value, microbatch});
      return;
    case ActionKind::Overlap:
      for_each_need(action.forward_part(), context, visit);
      for_each_need(action.backward_part(), context, visit);
      return;
    case ActionKind::SendForward:
      visit(Fact{FactKind::Output, action.stage().value, microbatch});
      return;
    case ActionKind::SendBackward:
      visit(Fact{FactKind::InputGradient, action.stage().value, microbatch});
      return;
    case ActionKind::RecvForward:
      transfer(action.peer(), action.stage(), FactKind::ForwardSent);
      return;
    case ActionKind::RecvBackward:
      transfer(action.stage(), action.peer(), FactKind::BackwardSent);
      return;
    case ActionKind::ReduceGrad:
      for (int m = 0; m < context.microbatches; ++m) {
        visit(Fact{FactKind::WeightGradient, action.stage().value, MicrobatchId(m)});
      }
      return;
    case ActionKind::Idle:
    case ActionKind::Unshard:
    case ActionKind::Reshard:
      return;
  }
}

//! Calls `visit(fact)` for every fact that `action` makes true.
template <class Visit>
void for_each_yield(const Action& action, const ActionContext& context, Visit&& visit) {
  const int stage = action.stage().value;
  const MicrobatchId microbatch = action.microbatch();
  const auto transfer = [&](StageId from, StageId to, FactKind edge_fact) {
    if (const auto edge = context.wiring.find(from, to)) visit(Fact{edge_fact, *edge, microbatch});
  };
  switch (action.kind()) {
    case ActionKind::Forward:
      visit(Fact{FactKind::Output, stage, microbatch});
      return;
    case ActionKind::Backward:
      visit(Fact{FactKind::InputGradient, stage, microbatch});
      visit(Fact{FactKind::WeightGradient, stage, microbatch});
      return;
    case ActionKind::BackwardInput:
      visit(Fact{FactKind::InputGradient, stage, microbatch});
      return;
    case ActionKind::BackwardWeight:
      visit(Fact{FactKind::WeightGradient, stage, microbatch});
      return;
    case ActionKind::Overlap:
      for_each_yield(action.forward_part(), context, visit);
      for_each_yield(action.backward_part(), context, visit);
      return;
    case ActionKind::SendForward:
      transfer(action.stage(), action.peer(), FactKind::ForwardSent);
      return;
    case ActionKind::RecvForward:
      transfer(action.peer(), action.stage(), FactKind::ForwardReceived);
      return;
    case ActionKind::SendBackward:
      transfer(action.peer(), action.stage(), FactKind::BackwardSent);
      return;
    case ActionKind::RecvBackward:
      transfer(action.stage(), action.peer(), FactKind::BackwardReceived);
      return;
    case ActionKind::Idle:
    case ActionKind::Unshard:
    case ActionKind::Reshard:
    case ActionKind::ReduceGrad:
      return;
  }
}

//! The same as vectors, for code that is not performance-critical.
std::vector<Fact> dependencies(const Action& action, const ActionContext& context);
std::vector<Fact> yields(const Action& action, const ActionContext& context);

//! Maps facts to dense indices, so that a flat table can store one entry per fact.
class FactIndex {
 public:
  FactIndex(const Wiring& wiring, int microbatches)
      : stages_(static_cast<std::size_t>(wiring.num_stages())),
        edges_(static_cast<std::size_t>(wiring.edges())),
        microbatches_(static_cast<std::size_t>(microbatches)) {}

  std::size_t size() const { return (3 * stages_ + 4 * edges_) * microbatches_; }
  std::size_t operator()(const Fact& fact) const {
    const auto kind = static_cast<std::size_t>(fact.kind);
    const std::size_t before = kind < 3 ? kind * stages_ : 3 * stages_ + (kind - 3) * edges_;
    return (before + static_cast<std::size_t>(fact.index)) * microbatches_ + fact.microbatch.index();
  }

 private:
  std::size_t stages_, edges_, microbatches_;
};

}  // namespace penstock::schedule
