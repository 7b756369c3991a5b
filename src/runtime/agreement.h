// What all ranks must agree on: once at set-up, where a difference names the rank and the field, and in a few
// words at the start of every step.
#pragma once

#include "runtime/setup.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

//! What must be the same on every rank: names, and values as text.
using SetupFields = std::vector<std::pair<std::string, std::string>>;
SetupFields fields_of(const PipelineSetup& setup);

//! UsageError on every rank of the group if the ranks' values differ; it names the first field that does and
//! a rank. All must have the same fields.
void compare_fields(const Group& group, const SetupFields& mine);
void compare_setups(const PipelineSetup& setup);

//! Fills in `keywords` and `has_loss`, which depend on the stages and options of all ranks.
void learn_from_all_ranks(PipelineSetup& setup);

//! Exchanges a byte between all ranks that the program lets talk to each other; CommError names the pair that
//! cannot, on every rank.
void warm_up(const PipelineSetup& setup);

//! What one rank says of the step it begins.
struct StepNote {
  std::uint64_t step = 0;
  bool train = true;
  std::vector<std::uint64_t> signatures;  //!< of its part of each microbatch
  std::vector<std::int64_t> rows;         //!< of the first stage's microbatches; zeros elsewhere
  std::int64_t row_order = 0;             //!< as CutBatch has it
};

//! Everybody's note, by rank. UsageError if some run another step, or evaluate while others train.
std::vector<StepNote> exchange_notes(const PipelineSetup& setup, const StepNote& mine);
//! ShapeError, the same on every rank, if microbatches would pair different rows.
void check_row_orders(const PipelineSetup& setup, const std::vector<StepNote>& notes);

}  // namespace penstock
