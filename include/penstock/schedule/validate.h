// The validator: checks a compute table or a draft and reports every problem it finds.
#pragma once

#include <penstock/base/diagnostic.h>
#include <penstock/schedule/program.h>
#include <penstock/schedule/schedule.h>

#include <array>
#include <optional>
#include <vector>

namespace penstock::schedule {

//! How findings name the location of an action: rank and step (from 0), or row and column of a file (from 1).
enum class LocationStyle { RankAndStep, RowAndColumn };

//! How a schedule is validated.
struct ValidateOptions {
  //! Checks safety only in this send mode; default: in every mode.
  std::optional<SendMode> send_mode{};
  //! The maximum number of microbatches in flight per rank, summed over its stages.
  std::optional<int> max_in_flight{};
  LocationStyle locations = LocationStyle::RankAndStep;
};

//! The result of a validation.
struct Verdict {
  //! Problems in every send mode: counts, placement, order within a rank, unmatched transfers, sharding.
  Diagnostics findings;
  //! Problems per send mode, such as the cycle of a deadlock; empty if the lists run to completion, nullopt
  //! if the mode was not checked (ValidateOptions::send_mode).
  std::array<std::optional<Diagnostics>, kSendModes.size()> by_mode;
  //! Per stage: the maximum number of microbatches whose forward pass is done and whose backward pass (B or
  //! W) is not.
  std::vector<int> peak_in_flight;
  //! Per rank: the maximum of the sum over its stages.
  std::vector<int> peak_in_flight_of_rank;

  //! Throws UsageError if the mode was not checked.
  const Diagnostics& of(SendMode mode) const;
  //! Whether there are no problems that apply to every send mode. Lowered lists can still deadlock: use
  //! `safe`.
  bool valid() const { return !has_errors(findings); }
  //! Whether the lists may run on a transport of this mode. Throws UsageError if the mode was not checked.
  bool safe(SendMode mode) const { return valid() && !has_errors(of(mode)); }
  //! The findings for every mode, then those for `mode`.
  Diagnostics all(SendMode mode) const;
};

//! Validates a compute table. A valid table is safe in every send mode, because lowering guarantees it.
Verdict validate(const Schedule& schedule, const Wiring& wiring, const ValidateOptions& options = {});
//! The same for a pipeline without skip values.
Verdict validate(const Schedule& schedule, const ValidateOptions& options = {});

//! Validates lowered lists.
Verdict validate(const Draft& draft, const ValidateOptions& options = {});

}  // namespace penstock::schedule
