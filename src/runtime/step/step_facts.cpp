// Tracks the facts of a step.
#include "runtime/step/step_facts.h"

#include "schedule/dependencies.h"

#include <penstock/base/error.h>

namespace penstock::runtime {
namespace {

// Actions of other ranks are visible here only as completed receives.
bool elsewhere(schedule::FactKind kind) {
  return kind == schedule::FactKind::ForwardSent || kind == schedule::FactKind::BackwardSent;
}

}  // namespace

void StepFacts::check(const schedule::Action& action) const {
  for_each_need(action, context_, [&](const schedule::Fact& fact) {
    if (elsewhere(fact.kind) || known_[index_(fact)]) return;
    throw ScheduleError(
        "the action ran before its dependency: " + to_string(fact, context_.wiring), {},
        "a function that replaces an action must call `run_default` or do the same work itself");
  });
  for_each_yield(action, context_, [&](const schedule::Fact& fact) {
    if (!known_[index_(fact)]) return;
    throw ScheduleError(
        "the action ran a second time; it already yielded " + to_string(fact, context_.wiring), {},
        "a function that replaces an action may call `run_default` only once");
  });
}

void StepFacts::add(const schedule::Action& action) {
  for_each_yield(action, context_, [&](const schedule::Fact& fact) { known_[index_(fact)] = true; });
}

}  // namespace penstock::runtime
