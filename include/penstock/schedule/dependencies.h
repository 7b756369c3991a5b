// The one dependency rule: what an action needs before it may run, and what it yields. Lowering, validation,
// simulation, drawing and the executor's checks all call it, and none of them has a rule of its own.
#pragma once

#include <penstock/schedule/action.h>
#include <penstock/schedule/placement.h>
#include <penstock/schedule/wiring.h>

#include <cstdint>
#include <vector>

namespace penstock {

//! Something that becomes true once in a step and stays true. (Whether a stage is unsharded comes and goes,
//! so it is no fact; the validator follows it.)
enum class FactKind : std::uint8_t {
  Output,            //!< of a stage: its forward is done
  InputGradient,     //!< of a stage: by an I or a B
  WeightGradient,    //!< of a stage: by a W or a B
  ForwardSent,       //!< of an edge: its value is on its way
  ForwardReceived,   //!< of an edge: its value has arrived
  BackwardSent,      //!< of an edge: the gradient of its value is on its way
  BackwardReceived,  //!< of an edge: that gradient has arrived
};

struct Fact {
  FactKind kind = FactKind::Output;
  int index = 0;  //!< the stage's or the edge's number, as the kind says
  MicrobatchId microbatch;

  friend constexpr bool operator==(const Fact&, const Fact&) = default;
};

//! Compute tables know no transfers: a value is there once it is computed. In lowered lists a value of
//! another rank's stage must have been received.
enum class Form { Compute, Lowered };

//! Where actions run: the edges, the ranks, and how many microbatches a step has.
struct Topology {
  const Wiring& wiring;
  const Placement& placement;
  int microbatches;
  Form form;

  bool crosses(int edge) const {
    const StageEdge& ends = wiring.edge(edge);
    return form == Form::Lowered && placement.rank_of(ends.from) != placement.rank_of(ends.to);
  }
};

//! Calls `visit(fact)` for everything that must be true before `action` may run. Stages and transfers must be
//! within the topology (the validator checks that first); a transfer along no edge needs nothing.
template <class Visit>
void for_each_need(const Action& action, const Topology& topology, Visit&& visit) {
  const Wiring& wiring = topology.wiring;
  const MicrobatchId batch = action.microbatch();
  const auto transfer = [&](StageId from, StageId to, FactKind edge_fact) {
    if (const int edge = wiring.find(from, to); edge >= 0) visit(Fact{edge_fact, edge, batch});
  };
  switch (action.kind()) {
    case ActionKind::Forward:
      for (const int edge : wiring.into(action.stage())) {
        if (topology.crosses(edge)) {
          visit(Fact{FactKind::ForwardReceived, edge, batch});
        } else {
          visit(Fact{FactKind::Output, wiring.edge(edge).from.value, batch});
        }
      }
      return;
    case ActionKind::Backward:
    case ActionKind::BackwardInput:
      visit(Fact{FactKind::Output, action.stage().value, batch});
      for (const int edge : wiring.out_of(action.stage())) {
        if (topology.crosses(edge)) {
          visit(Fact{FactKind::BackwardReceived, edge, batch});
        } else {
          visit(Fact{FactKind::InputGradient, wiring.edge(edge).to.value, batch});
        }
      }
      return;
    case ActionKind::BackwardWeight:
      visit(Fact{FactKind::InputGradient, action.stage().value, batch});
      return;
    case ActionKind::Overlap:
      for_each_need(action.forward_part(), topology, visit);
      for_each_need(action.backward_part(), topology, visit);
      return;
    case ActionKind::SendForward:
      visit(Fact{FactKind::Output, action.stage().value, batch});
      return;
    case ActionKind::SendBackward:
      visit(Fact{FactKind::InputGradient, action.stage().value, batch});
      return;
    case ActionKind::RecvForward:
      transfer(action.peer(), action.stage(), FactKind::ForwardSent);
      return;
    case ActionKind::RecvBackward:
      transfer(action.stage(), action.peer(), FactKind::BackwardSent);
      return;
    case ActionKind::ReduceGrad:
      for (int m = 0; m < topology.microbatches; ++m) {
        visit(Fact{FactKind::WeightGradient, action.stage().value, MicrobatchId(m)});
      }
      return;
    case ActionKind::Idle:
    case ActionKind::Unshard:
    case ActionKind::Reshard:
      return;
  }
}

//! Calls `visit(fact)` for everything that becomes true by `action`.
template <class Visit>
void for_each_yield(const Action& action, const Topology& topology, Visit&& visit) {
  const int stage = action.stage().value;
  const MicrobatchId batch = action.microbatch();
  const auto transfer = [&](StageId from, StageId to, FactKind edge_fact) {
    if (const int edge = topology.wiring.find(from, to); edge >= 0) visit(Fact{edge_fact, edge, batch});
  };
  switch (action.kind()) {
    case ActionKind::Forward:
      visit(Fact{FactKind::Output, stage, batch});
      return;
    case ActionKind::Backward:
      visit(Fact{FactKind::InputGradient, stage, batch});
      visit(Fact{FactKind::WeightGradient, stage, batch});
      return;
    case ActionKind::BackwardInput:
      visit(Fact{FactKind::InputGradient, stage, batch});
      return;
    case ActionKind::BackwardWeight:
      visit(Fact{FactKind::WeightGradient, stage, batch});
      return;
    case ActionKind::Overlap:
      for_each_yield(action.forward_part(), topology, visit);
      for_each_yield(action.backward_part(), topology, visit);
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

//! The same as lists, for where speed does not matter.
std::vector<Fact> dependencies(const Action& action, const Topology& topology);
std::vector<Fact> yields(const Action& action, const Topology& topology);

//! Facts numbered densely, so that a table can hold what is known of each.
class FactIndex {
 public:
  FactIndex(const Wiring& wiring, int microbatches)
      : stages_(static_cast<std::size_t>(wiring.stages())),
        edges_(static_cast<std::size_t>(wiring.edges())),
        microbatches_(static_cast<std::size_t>(microbatches)) {}

  std::size_t size() const { return (3 * stages_ + 4 * edges_) * microbatches_; }
  std::size_t operator()(const Fact& fact) const {
    const auto kind = static_cast<std::size_t>(fact.kind);
    const std::size_t before = kind < 3 ? kind * stages_ : 3 * stages_ + (kind - 3) * edges_;
    return (before + static_cast<std::size_t>(fact.index)) * microbatches_ +
           static_cast<std::size_t>(fact.microbatch.value);
  }

 private:
  std::size_t stages_, edges_, microbatches_;
};

}  // namespace penstock
