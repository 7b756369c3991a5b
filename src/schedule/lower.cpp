// The list of passes, and lowering, which runs those that the options enable.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <array>
#include <string>
#include <utility>

namespace penstock::schedule {
namespace {

constexpr std::array kPasses{
    Pass{"merge-backward", "merge an I and the W right after it into a B", merge_backward},
    Pass{"unshard", "unshard stages before their use, reshard them afterwards", add_unshard},
    Pass{"reduce-grad", "reduce a stage's gradients after its last backward", add_reduce_grad},
    Pass{"send-recv", "insert a send and a receive for every value used on another rank", add_send_recv},
    Pass{"defer-receives", "post receives as late as their use and the transfer order allow", defer_receives},
    Pass{"reorder", "move transfers so that every send mode is safe", reorder},
};

}  // namespace

std::span<const Pass> passes() {
  return kPasses;
}

Draft run_pass(std::string_view name, Draft draft, const LowerOptions& options) {
  std::vector<std::string> names;
  for (const Pass& pass : kPasses) {
    if (pass.name == name) return pass.run(std::move(draft), options);
    names.emplace_back(pass.name);
  }
  throw UsageError("unknown pass " + quote(name) + "; known passes: " + join(names, ", "));
}

Draft lower(const Schedule& schedule, const LowerOptions& options) {
  Draft draft = to_draft(schedule, options.skips);
  if (options.merge_backward) draft = merge_backward(std::move(draft), options);
  if (options.shard) draft = add_unshard(std::move(draft), options);
  if (options.reduce_grad) draft = add_reduce_grad(std::move(draft), options);
  draft = add_send_recv(std::move(draft), options);
  if (options.defer_receives) draft = defer_receives(std::move(draft), options);
  return draft;
}

Program make_program(const Schedule& schedule, SendMode mode, const LowerOptions& options) {
  // Lowering requires a valid table, and findings about the table are clearer than findings about the lists.
  const Verdict verdict = validate(schedule, Wiring(schedule.num_stages(), options.skips));
  if (!verdict.valid()) {
    throw ScheduleError("the schedule " + (schedule.name.empty() ? "" : schedule.name + " ") +
                        "is not valid:\n" + to_string(verdict.findings));
  }
  return Program::validated(lower(schedule, options), mode);
}

}  // namespace penstock::schedule
