// Agreement between ranks: a full comparison at setup, where an error names the rank and the field, and a
// short note at the start of every step.
#pragma once

#include "runtime/setup/pipeline_setup.h"
#include "value/row_order.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace penstock::runtime {

//! The fields that must be equal on every rank: names, and values as text.
using SetupFields = std::vector<std::pair<std::string, std::string>>;
SetupFields fields_of(const PipelineSetup& setup);

//! UsageError on every rank of the group if the values differ; it names the first differing field and a rank.
//! All ranks must pass the same fields.
void compare_fields(const comm::Group& group, const SetupFields& local);
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
  std::vector<std::uint64_t> signatures;  //!< of this rank's values, per microbatch
  std::vector<std::int64_t> rows;         //!< of the first stage's microbatches; zeros elsewhere
  //! The row order of its values (`row_order_code`).
  std::int64_t row_order = 0;

  //! Whether the values have the same shapes and rows as those of another step.
  bool same_values(const StepNote& other) const {
    return signatures == other.signatures && rows == other.rows && row_order == other.row_order;
  }
};

//! Gathers the notes of all ranks, while this rank does something else.
class NoteExchange {
 public:
  NoteExchange(const PipelineSetup& setup, const StepNote& local);
  //! Waits. Throws UsageError if ranks run different steps, or only some train.
  std::vector<StepNote> finish();

 private:
  const PipelineSetup& setup_;
  std::size_t microbatches_;
  at::Tensor all_;
  comm::Work work_;
};

//! Gathers the notes of all ranks. Throws UsageError if ranks run different steps, or only some train.
std::vector<StepNote> exchange_notes(const PipelineSetup& setup, const StepNote& local);
//! A row order as a number: 0 if nothing is split, 1 if the rows are not sharded, otherwise a hash.
std::int64_t row_order_code(const value::RowOrder& order);
//! ShapeError on every rank if microbatches would pair different rows.
void check_row_orders(const PipelineSetup& setup, const std::vector<StepNote>& notes);

//! The row order of the batch on every rank; only some ranks hold values that show it.
class BatchRowOrder {
 public:
  //! Collective, after `check_row_orders`. Communicates if the order is sharded and new.
  const value::RowOrder& find(const PipelineSetup& setup, const std::vector<StepNote>& notes,
                              const value::RowOrder& local);

 private:
  std::map<std::int64_t, value::RowOrder> known_{{1, {1}}};  // by code
};

}  // namespace penstock::runtime
