// The validator: proves a compute table or a draft, or says everything that is wrong with it.
#pragma once

#include <penstock/base/diagnostic.h>
#include <penstock/schedule/program.h>
#include <penstock/schedule/schedule.h>

#include <array>
#include <optional>
#include <vector>

namespace penstock {

//! How findings name the place of an action: as programs count, from 0, or as a file's rows and fields,
//! from 1.
enum class Places { RankAndStep, RowAndColumn };

struct ValidateOptions {
  //! Only this mode's safety is looked at; all three without it.
  std::optional<SendMode> mode;
  //! The most microbatches that a rank may have in flight, summed over its stages.
  std::optional<int> max_in_flight;
  Places places = Places::RankAndStep;
};

//! What the validator found.
struct Verdict {
  //! What is wrong whatever the transport: counts, places, order within a rank, unmatched transfers,
  //! sharding.
  Diagnostics findings;
  //! For each send mode: nothing if the lists run to their end in it, else why not (a deadlock as its cycle).
  std::array<Diagnostics, 3> by_mode;
  //! For each stage: the most microbatches whose forward is done and whose backward (B, or W) is not.
  std::vector<int> peak_in_flight;
  //! The same summed over a rank's stages at each moment.
  std::vector<int> peak_in_flight_of_rank;

  const Diagnostics& of(SendMode mode) const { return by_mode[static_cast<std::size_t>(mode)]; }
  bool valid() const { return !has_errors(findings); }
  //! Whether the lists may run on a transport of this mode.
  bool safe(SendMode mode) const { return valid() && !has_errors(of(mode)); }
  //! The findings, then the mode's.
  Diagnostics all(SendMode mode) const;
};

//! A compute table. Where it is valid it is safe in every mode, because lowering makes it so.
Verdict validate(const Schedule& schedule, const Wiring& wiring, const ValidateOptions& options = {});
Verdict validate(const Schedule& schedule, const ValidateOptions& options = {});

//! Lowered lists.
Verdict validate(const Draft& draft, const ValidateOptions& options = {});

}  // namespace penstock
