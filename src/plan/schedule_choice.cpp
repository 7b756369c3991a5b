// Names of schedule choices.
#include "base/text.h"

#include <penstock/plan/schedule_choice.h>

namespace penstock::plan {

std::string to_string(const ScheduleChoice& choice) {
  const auto* const kind = std::get_if<schedule::ScheduleKind>(&choice);
  return kind != nullptr ? std::string(schedule::to_string(*kind)) : "Auto";
}

std::vector<std::string> schedule_choice_names() {
  std::vector<std::string> names = schedule::schedule_names();
  names.push_back(to_string(ScheduleChoice(AutoSchedule{})));
  return names;
}

ScheduleChoice parse_schedule_choice(std::string_view name) {
  if (to_lower(name) == "auto") return AutoSchedule{};
  return schedule::parse_schedule_kind(name);
}

}  // namespace penstock::plan
