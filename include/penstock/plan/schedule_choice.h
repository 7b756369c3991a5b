// The choice of a schedule: a built-in one, or one that is generated for the costs of a model.
#pragma once

#include <penstock/schedule/generate.h>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock::plan {

//! Generates the schedule from costs with `make_auto_schedule`.
struct AutoSchedule {
  friend bool operator==(const AutoSchedule&, const AutoSchedule&) = default;
};

//! A built-in schedule, or a generated one.
using ScheduleChoice = std::variant<schedule::ScheduleKind, AutoSchedule>;

inline bool is_auto(const ScheduleChoice& choice) {
  return std::holds_alternative<AutoSchedule>(choice);
}

//! The name of the schedule, or `Auto`.
std::string to_string(const ScheduleChoice& choice);
//! The names of the built-in schedules, and `Auto`.
std::vector<std::string> schedule_choice_names();
//! Case-insensitive. Throws a UsageError that lists the known names.
ScheduleChoice parse_schedule_choice(std::string_view name);

}  // namespace penstock::plan
