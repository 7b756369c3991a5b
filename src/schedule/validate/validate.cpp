// Runs all checks on a compute table or on lowered lists.
#include "base/text.h"
#include "schedule/dependencies.h"
#include "schedule/validate/checks.h"

#include <penstock/base/error.h>
#include <penstock/schedule/validate.h>

#include <algorithm>

namespace penstock::schedule {
namespace {

// Checks that the counts of ranks, stages and microbatches are consistent.
bool check_frame(const ActionContext& context, const std::vector<ActionList>& ranks, Findings& findings) {
  const Placement& placement = context.placement;
  const std::size_t before = findings.count();
  if (ranks.empty()) findings.error("", "there are no ranks");
  if (placement.num_stages() < 1) findings.error("", "there are no stages");
  if (context.microbatches < 1) findings.error("", "there are no microbatches");
  if (static_cast<std::size_t>(placement.ranks()) != ranks.size()) {
    findings.error("", str_cat("the placement has ", placement.ranks(), " ranks, but there are lists for ",
                               ranks.size()));
  }
  if (context.wiring.num_stages() != placement.num_stages()) {
    findings.error("", str_cat("the wiring has ", context.wiring.num_stages(),
                               " stages, but the placement has ", placement.num_stages()));
  }
  if (findings.count() != before) return false;
  // Rejects huge stage or microbatch numbers in a small file before allocating tables of that size.
  const double needed = static_cast<double>(placement.num_stages()) * context.microbatches;
  const auto held = static_cast<double>(action_count(ranks));
  if (needed > 4 * held + 1e6) {
    findings.error(
        "", str_cat(placement.num_stages(), " stages by ", context.microbatches,
                    " microbatches need far more than the ", action_count(ranks), " actions in the lists"));
  }
  return findings.count() == before;
}

void check_in_flight(const Verdict& verdict, const ValidateOptions& options, Findings& findings) {
  if (!options.max_in_flight) return;
  for (std::size_t rank = 0; rank < verdict.peak_in_flight_of_rank.size(); ++rank) {
    const int peak = verdict.peak_in_flight_of_rank[rank];
    if (peak <= *options.max_in_flight) continue;
    findings.error(findings.location(rank),
                   str_cat(peak, " microbatches are in flight at once, more than the ",
                           *options.max_in_flight, " allowed"));
  }
}

Verdict run(const ActionContext& context, const std::vector<ActionList>& ranks,
            const ValidateOptions& options) {
  Verdict verdict;
  for (const SendMode mode : kSendModes) {
    if (!options.send_mode || *options.send_mode == mode || context.level == ProgramLevel::Compute)
      verdict.by_mode[static_cast<std::size_t>(mode)].emplace();
  }
  Findings findings(verdict.findings, options.locations);
  if (!check_frame(context, ranks, findings)) return verdict;

  const Subject subject{context, ranks, has_backward(ranks)};
  const FactIndex index(context.wiring, context.microbatches);
  FactTable yielded(index.size(), 0);
  const bool readable = check_lists(subject, index, yielded, verdict, findings);
  check_complete(subject, index, yielded, findings);
  check_in_flight(verdict, options, findings);
  if (readable && context.level == ProgramLevel::Compute) {
    check_deadlock(subject, index, yielded, SendMode::Buffered, findings);
  }
  findings.close();
  if (!readable || context.level == ProgramLevel::Compute) return verdict;

  for (const SendMode mode : kSendModes) {
    auto& found = verdict.by_mode[static_cast<std::size_t>(mode)];
    if (!found) continue;
    Findings of_mode(*found, options.locations);
    if (mode == SendMode::Ordered) check_pair_order(subject, of_mode);
    check_deadlock(subject, index, yielded, mode, of_mode);
    of_mode.close();
  }
  return verdict;
}

}  // namespace

const Diagnostics& Verdict::of(SendMode mode) const {
  const auto& found = by_mode[static_cast<std::size_t>(mode)];
  if (!found)
    throw UsageError(std::string(to_string(mode)) + " sends were not checked", {},
                     "validate without ValidateOptions::send_mode, or with this one");
  return *found;
}

Diagnostics Verdict::all(SendMode mode) const {
  Diagnostics all = findings;
  all.insert(all.end(), of(mode).begin(), of(mode).end());
  return all;
}

Verdict validate(const Schedule& schedule, const Wiring& wiring, const ValidateOptions& options) {
  return run({wiring, schedule.placement, schedule.microbatches, ProgramLevel::Compute}, schedule.ranks,
             options);
}

Verdict validate(const Schedule& schedule, const ValidateOptions& options) {
  return validate(schedule, Wiring(schedule.num_stages()), options);
}

Verdict validate(const Draft& draft, const ValidateOptions& options) {
  return run(context_of(draft), draft.ranks, options);
}

}  // namespace penstock::schedule
