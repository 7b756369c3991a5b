// Errors of actions: what happened, where in the pipeline, and the schedule around it.
#pragma once

#include <penstock/base/error.h>
#include <penstock/schedule/schedule.h>

#include <cstddef>
#include <string>

namespace penstock {

//! Where an action stands.
ErrorContext context_of(const Action& action, Rank rank);

//! The actions before and after number `at`, which is marked: `… 1RECV_F1 [1F1] 1SEND_F1 …`
std::string schedule_around(const ActionList& actions, std::size_t at);

//! Inside a handler only: rethrows the current exception as the same member of the error family with the gaps
//! of its context filled in, or as a StageError around whatever else was thrown.
[[noreturn]] void rethrow_in(const ErrorContext& context, const std::string& around);

}  // namespace penstock
