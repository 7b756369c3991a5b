// Agreement between ranks: a full comparison at setup, where an error names the rank and the field, and a
// short note at the start of every step.
#pragma once

#include "runtime/setup/pipeline_setup.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock::runtime {

//! The fields that must be equal on every rank: names, and values as text.
using SetupFields = std::vector<std::pair<std::string, std::string>>;
SetupFields fields_of(const PipelineSetup& setup);

//! UsageError on every rank of the group if the values differ; it names the first differing field and a rank.
//! All ranks must pass the same fields.
void compare_fields(const comm::Group& group, const SetupFields& mine);
void compare_setups(const PipelineSetup& setup);

//! Fills in `keywords` and `has_loss`, which depend on the stages and options of all ranks.
void learn_from_all_ranks(PipelineSetup& setup);

//! Exchanges a byte between all pairs of ranks that communicate in the program. If a pair cannot communicate,
//! throws a CommError that names it on every rank.
void warm_up(const PipelineSetup& setup);

//! The note that a rank sends at the start of a step.
struct StepNote {
  std::uint64_t step = 0;
  bool train = true;
  std::vector<std::uint64_t> signatures;  //!< of its values of each microbatch
  std::vector<std::int64_t> rows;         //!< of the first stage's microbatches; zeros elsewhere
  std::int64_t row_order = 0;             //!< as in CutBatch
};

//! Gathers the notes of all ranks. UsageError if ranks run different steps, or mix training and evaluation.
std::vector<StepNote> exchange_notes(const PipelineSetup& setup, const StepNote& mine);
//! ShapeError on every rank if microbatches would pair different rows.
void check_row_orders(const PipelineSetup& setup, const std::vector<StepNote>& notes);

}  // namespace penstock::runtime
