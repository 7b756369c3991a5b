// Adds the context of an action to errors.
#include "runtime/step/action_error.h"

#include <penstock/runtime/error.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <string_view>

namespace penstock::runtime {
namespace {

constexpr std::size_t kAround = 4;  // actions shown on each side

std::string hint_of(const Error& error, const std::string& around) {
  const std::string location = "nearby actions in the schedule: " + around;
  return error.hint().empty() ? location : error.hint() + "; " + location;
}

// A hint for an error of libtorch that microbatches explain; empty for all others.
std::string hint_for(std::string_view message) {
  if (message.find("more than 1 value per channel") == std::string_view::npos) return "";
  return "the microbatch has one row, too few for a batch norm: use fewer microbatches or a larger batch; ";
}

template <class Kind>
[[noreturn]] void rethrow_as(const Kind& error, const ErrorContext& context, const std::string& around) {
  throw Kind(error.message(), error.context().within(context), hint_of(error, around));
}

}  // namespace

ErrorContext context_of(const schedule::Action& action, Rank rank) {
  ErrorContext context;
  context.rank = rank;
  context.stage = action.stage();
  context.action = to_string(action);
  if (action.is_compute() || action.is_transfer()) context.microbatch = action.microbatch();
  return context;
}

std::string schedule_around(const schedule::ActionList& actions, std::size_t at) {
  const std::size_t from = at > kAround ? at - kAround : 0;
  const std::size_t to = std::min(actions.size(), at + kAround + 1);
  std::string text = from > 0 ? "…" : "";
  for (std::size_t i = from; i < to; ++i) {
    if (actions[i].is_idle()) continue;
    if (!text.empty()) text += ' ';
    text += i == at ? "[" + to_string(actions[i]) + "]" : to_string(actions[i]);
  }
  return to < actions.size() ? text + " …" : text;
}

void rethrow_in(const ErrorContext& context, const std::string& around) {
  try {
    throw;
  } catch (const PeerFailed& e) {
    throw PeerFailed(e.peer(), e.cause(), e.context().within(context));
  } catch (const TimeoutError& e) {
    rethrow_as(e, context, around);
  } catch (const CommError& e) {
    rethrow_as(e, context, around);
  } catch (const ShapeError& e) {
    rethrow_as(e, context, around);
  } catch (const ScheduleError& e) {
    rethrow_as(e, context, around);
  } catch (const UsageError& e) {
    rethrow_as(e, context, around);
  } catch (const ParseError& e) {
    rethrow_as(e, context, around);
  } catch (const StageError& e) {
    rethrow_as(e, context, around);
  } catch (const c10::Error& e) {
    const std::string message = e.what_without_backtrace();
    std::throw_with_nested(
        StageError(message, context, hint_for(message) + "nearby actions in the schedule: " + around));
  } catch (const std::exception& e) {
    std::throw_with_nested(StageError(e.what(), context, "nearby actions in the schedule: " + around));
  }
  // Anything that is not a std::exception (such as a thread cancellation) passes unchanged.
}

}  // namespace penstock::runtime
