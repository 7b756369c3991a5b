// Tracks the facts of a step.
#include "runtime/step/step_facts.h"

#include "schedule/dependencies.h"

#include <penstock/base/error.h>

#include <string>

namespace penstock::runtime {
namespace {

// Actions of other ranks are visible here only as completed receives.
bool elsewhere(schedule::FactKind kind) {
  return kind == schedule::FactKind::ForwardSent || kind == schedule::FactKind::BackwardSent;
}

std::string text(const schedule::Fact& fact, const schedule::Wiring& wiring) {
  const auto of_stage = [&](const char* what) { return what + (" of stage " + std::to_string(fact.index)); };
  const auto of_transfer = [](const char* what, StageId from, StageId to) {
    return what + (" from stage " + std::to_string(from.value) + " to stage " + std::to_string(to.value));
  };
  const auto forward = [&](const char* what) {
    const schedule::StageEdge& edge = wiring.edge(fact.index);
    return of_transfer(what, edge.from, edge.to);
  };
  const auto backward = [&](const char* what) {
    const schedule::StageEdge& edge = wiring.edge(fact.index);
    return of_transfer(what, edge.to, edge.from);
  };
  switch (fact.kind) {
    case schedule::FactKind::Output:
      return of_stage("the forward");
    case schedule::FactKind::InputGradient:
      return of_stage("the input half of the backward");
    case schedule::FactKind::WeightGradient:
      return of_stage("the weight half of the backward");
    case schedule::FactKind::ForwardSent:
      return forward("the send of the value");
    case schedule::FactKind::ForwardReceived:
      return forward("the receive of the value");
    case schedule::FactKind::BackwardSent:
      return backward("the send of the gradient");
    case schedule::FactKind::BackwardReceived:
      return backward("the receive of the gradient");
  }
  return {};
}

}  // namespace

void StepFacts::check(const schedule::Action& action) const {
  for_each_need(action, context_, [&](const schedule::Fact& fact) {
    if (elsewhere(fact.kind) || known_[index_(fact)]) return;
    throw ScheduleError(
        "the action ran before " + text(fact, context_.wiring) + ", which it depends on", {},
        "a function that replaces an action must call `run_default` or do the same work itself");
  });
  for_each_yield(action, context_, [&](const schedule::Fact& fact) {
    if (!known_[index_(fact)]) return;
    throw ScheduleError("the action ran a second time: " + text(fact, context_.wiring) + " has already run",
                        {}, "a function that replaces an action may call `run_default` only once");
  });
}

void StepFacts::add(const schedule::Action& action) {
  for_each_yield(action, context_, [&](const schedule::Fact& fact) { known_[index_(fact)] = true; });
}

}  // namespace penstock::runtime
