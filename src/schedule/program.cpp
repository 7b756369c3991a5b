// Drafts and programs.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/schedule/program.h>
#include <penstock/schedule/validate.h>

#include <utility>

namespace penstock::schedule {

Draft to_draft(const Schedule& schedule, std::vector<StageEdge> skips) {
  Draft draft{schedule.name,
              schedule.placement,
              Wiring(schedule.num_stages(), std::move(skips)),
              schedule.microbatches,
              {}};
  draft.ranks.reserve(schedule.ranks.size());
  for (const ActionList& slots : schedule.ranks) {
    ActionList& list = draft.ranks.emplace_back();
    list.reserve(slots.size());
    for (const Action& action : slots) {
      if (!action.is_idle()) list.push_back(action);
    }
  }
  return draft;
}

Schedule compute_only(const Draft& draft) {
  Schedule schedule{draft.name, draft.placement, draft.microbatches, {}};
  for (const ActionList& actions : draft.ranks) {
    ActionList& list = schedule.ranks.emplace_back();
    for (const Action& action : actions) {
      if (action.is_compute()) list.push_back(action);
    }
  }
  return schedule;
}

Program::Program(Draft draft, SendMode mode, std::vector<int> peak_in_flight)
    : draft_(std::move(draft)),
      send_mode_(mode),
      has_backward_(penstock::schedule::has_backward(draft_.ranks)),
      peak_in_flight_(std::move(peak_in_flight)) {}

Program Program::validated(Draft draft, SendMode mode) {
  Verdict verdict = validate(draft, {.send_mode = mode});
  if (!verdict.safe(mode)) {
    throw ScheduleError("the program " + (draft.name.empty() ? "" : draft.name + " ") + "is not safe with " +
                        std::string(to_string(mode)) + " sends:\n" + to_string(verdict.all(mode)));
  }
  return {std::move(draft), mode, std::move(verdict.peak_in_flight)};
}

}  // namespace penstock::schedule
