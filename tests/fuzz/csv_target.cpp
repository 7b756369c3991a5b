// Guarantees checked here: reading never throws, printing inverts reading, a valid table lowers to lists that
// are safe in every send mode, and every program that the validator accepts can be constructed.
#include "fuzz/targets.h"

#include <penstock/schedule/csv.h>
#include <penstock/schedule/lower.h>

#include <sstream>
#include <string>

namespace penstock::fuzz {

const char* check_csv(std::string_view bytes) {
  std::istringstream in{std::string(bytes)};
  Diagnostics problems;
  const schedule::ScheduleFile file = schedule::read_csv(in, problems);
  if (has_errors(problems)) return nullptr;

  const std::string printed = to_csv(file.schedule());
  std::istringstream again(printed);
  const schedule::ScheduleFile reread = schedule::read_csv(again);
  if (to_csv(reread.schedule()) != printed) return "printing and reading again gives another text";
  if (reread.placement.num_stages() != file.placement.num_stages()) return "reading again gives other stages";

  const schedule::Verdict verdict = file.validate();
  if (!verdict.valid()) return nullptr;
  if (file.level == schedule::ProgramLevel::Compute) {
    const schedule::Draft draft = lower(file.schedule());
    if (!validate(draft).safe(schedule::SendMode::Blocking)) return "a valid table lowers to unsafe lists";
    return nullptr;
  }
  const schedule::Draft draft = file.draft();
  if (verdict.safe(schedule::SendMode::Ordered) && !verdict.safe(schedule::SendMode::Buffered))
    return "ordered is not stricter than buffered";
  if (verdict.safe(schedule::SendMode::Blocking) && !verdict.safe(schedule::SendMode::Buffered))
    return "blocking is not stricter than buffered";
  if (!validate(reorder(draft)).safe(schedule::SendMode::Blocking) &&
      verdict.safe(schedule::SendMode::Buffered)) {
    return "a runnable program could not be reordered";
  }
  return nullptr;
}

}  // namespace penstock::fuzz
