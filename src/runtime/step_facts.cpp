// Facts of a step.
#include "runtime/step_facts.h"

#include <penstock/base/error.h>

#include <string>

namespace penstock {
namespace {

// What another rank does shows here only as a receive that ends.
bool elsewhere(FactKind kind) {
  return kind == FactKind::ForwardSent || kind == FactKind::BackwardSent;
}

std::string text(const Fact& fact, const Wiring& wiring) {
  const auto of_stage = [&](const char* what) { return what + (" of stage " + std::to_string(fact.index)); };
  const auto of_edge = [&](const char* what) {
    const StageEdge& edge = wiring.edge(fact.index);
    return what +
           (" from stage " + std::to_string(edge.from.value) + " to stage " + std::to_string(edge.to.value));
  };
  switch (fact.kind) {
    case FactKind::Output:
      return of_stage("the forward");
    case FactKind::InputGradient:
      return of_stage("the input half of the backward");
    case FactKind::WeightGradient:
      return of_stage("the weight half of the backward");
    case FactKind::ForwardSent:
      return of_edge("the send of the value");
    case FactKind::ForwardReceived:
      return of_edge("the receive of the value");
    case FactKind::BackwardSent:
      return of_edge("the send back of the gradient of the value");
    case FactKind::BackwardReceived:
      return of_edge("the receive of the gradient of the value");
  }
  return {};
}

}  // namespace

void StepFacts::check(const Action& action) const {
  for_each_need(action, topology_, [&](const Fact& fact) {
    if (elsewhere(fact.kind) || known_[index_(fact)]) return;
    throw ScheduleError("asked for before " + text(fact, topology_.wiring) + " has run", {},
                        "a function that replaces an action must see that the usual is done");
  });
  for_each_yield(action, topology_, [&](const Fact& fact) {
    if (!known_[index_(fact)]) return;
    throw ScheduleError("asked for a second time: " + text(fact, topology_.wiring) + " has run", {},
                        "a function that replaces an action may do the usual once");
  });
}

void StepFacts::add(const Action& action) {
  for_each_yield(action, topology_, [&](const Fact& fact) { known_[index_(fact)] = true; });
}

}  // namespace penstock
