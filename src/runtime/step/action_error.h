// Errors in actions: the cause, the location in the pipeline, and the surrounding schedule.
#pragma once

#include <penstock/base/error.h>
#include <penstock/schedule/schedule.h>

#include <cstddef>
#include <string>

namespace penstock::runtime {

//! The context of an action.
ErrorContext context_of(const schedule::Action& action, Rank rank);

//! The actions around index `at`, which is marked: `… 1RECV_F1 [1F1] 1SEND_F1 …`
std::string schedule_around(const schedule::ActionList& actions, std::size_t at);

//! Call only inside a catch block. Rethrows a penstock error as the same type with the missing fields of its
//! context filled in, and any other exception nested in a StageError.
[[noreturn]] void rethrow_in(const ErrorContext& context, const std::string& around);

}  // namespace penstock::runtime
