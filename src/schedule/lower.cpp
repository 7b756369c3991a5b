// The passes by name, and the order in which lowering runs them.
#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <array>
#include <string>
#include <utility>

namespace penstock {
namespace {

constexpr std::array all_passes{
    Pass{"merge-backward", "an I with its W right after it becomes a B", merge_backward},
    Pass{"unshard", "unshard stages ahead of their use, reshard them after", add_unshard},
    Pass{"reduce-grad", "reduce a stage's gradients after its last backward", add_reduce_grad},
    Pass{"send-recv", "a send and a receive for every value that goes to another rank", add_send_recv},
    Pass{"defer-receives", "receive as late as the use and the pair's order allow", defer_receives},
    Pass{"reorder", "move transfers so that every send mode is safe", reorder},
};

}  // namespace

std::span<const Pass> passes() {
  return all_passes;
}

Draft run_pass(std::string_view name, Draft draft, const LowerOptions& options) {
  std::vector<std::string> names;
  for (const Pass& pass : all_passes) {
    if (pass.name == name) return pass.run(std::move(draft), options);
    names.emplace_back(pass.name);
  }
  throw UsageError("unknown pass " + quote(name) + "; known are " + join(names, ", "));
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
  // Lowering works on sound tables only; what is wrong with this one is better said of the table than of its
  // lists.
  const Verdict verdict = validate(schedule, Wiring(schedule.stages(), options.skips));
  if (!verdict.valid()) {
    throw ScheduleError("the schedule " + (schedule.name.empty() ? "" : schedule.name + " ") +
                        "is not valid:\n" + to_text(verdict.findings));
  }
  return Program::prove(lower(schedule, options), mode);
}

}  // namespace penstock
