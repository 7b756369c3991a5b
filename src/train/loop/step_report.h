// What the ranks of a run tell each other about a step, and the record they make of it.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/train/trainer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace penstock::train {

//! The report of a rank to all others, for each step that is logged.
struct StepReport {
  double loss = 0;  //!< of its replica; only on ranks of the last stage
  double grad_norm = 0, busy = 0, end = 0, peak = 0;
  double stop = 0;  //!< RunExtras::stop of the rank
};

//! Returns the reports of all ranks. Collective.
std::vector<StepReport> exchange(const comm::Group& world, const StepReport& local);

//! Whether RunExtras::stop of any rank asks to stop: the same on all ranks. Collective.
bool is_asked_to_stop(const comm::Group& world, const std::function<int()>& stop);

//! Combines the reports of all ranks into one record, identical on every rank. `loss_rank` is the pipeline
//! rank of the last stage.
void fill(StepRecord& record, const std::vector<StepReport>& reports, const ParallelOptions& options,
          int loss_rank);

//! Returns the mean of the losses of the parts of a batch, with one host sync if they are on a device.
double mean_loss(const std::vector<at::Tensor>& losses);

//! The time and the examples since the last record.
struct LogInterval {
  std::int64_t steps = 0, examples = 0;
  double seconds = 0;
  std::optional<std::int64_t> tokens{};  //!< of all replicas

  //! Writes times per step to the record, and starts again.
  void close(StepRecord& record);
};

}  // namespace penstock::train
