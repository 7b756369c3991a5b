// Measurements of a step: timelines of all ranks, costs for the planner, and drawings.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/plan/costs.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/schedule/timeline.h>
#include <penstock/train/options.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace penstock::train {

//! Compute time of this rank in a step, and the end of its last action, in seconds.
struct Busy {
  double busy = 0;
  double end = 0;
};
Busy busy_of(const schedule::Timeline& timeline);

//! Merges the timelines of all ranks of a pipeline. Collective.
schedule::Timeline gather_timeline(const comm::Group& pipeline, const schedule::Timeline& local);

//! Sizes of a stage in bytes.
struct StageBytes {
  std::uint64_t output = 0, kept = 0, parameters = 0, gradients = 0, optimizer = 0;
};
//! Gathers the sizes of all stages on every rank. Collective.
std::vector<StageBytes> gather_bytes(const comm::Group& pipeline, int stages,
                                     const std::map<StageId, StageBytes>& local);

//! Returns the mean times of each stage over the timelines. If only full backward passes were measured, each
//! half counts as half of one; if only halves were measured, a full backward pass counts as their sum.
plan::Costs measured_costs(const std::vector<schedule::Timeline>& timelines,
                           const std::vector<StageBytes>& bytes);

//! Returns the text of a cost file for `penstock plan`.
std::string cost_file(const plan::Costs& costs, int microbatches, const std::string& heading);

//! `2 pipeline ranks x 3 replicas`.
std::string topology_text(const ParallelOptions& parallel);

//! The step that a page of timelines shows.
struct MeasuredStep {
  std::string model;
  std::int64_t step = 0;
  std::string topology;
  std::vector<std::uint64_t> peak_memory;  //!< of the run so far, per rank
  bool is_resident = false;                //!< whether these bytes are resident in processes, not on devices
};

//! Draws the measured step next to the prediction from the same costs.
std::string timeline_page(const schedule::Program& program, const schedule::Timeline& measured,
                          const plan::Costs& costs, const MeasuredStep& step);
//! The same as a trace, with transfers as arrows and the predicted memory.
std::string timeline_trace(const schedule::Program& program, const schedule::Timeline& measured,
                           const plan::Costs& costs, const MeasuredStep& step);

//! Returns the peak memory in bytes: of tensors of the device, or resident in this process for the CPU.
std::uint64_t peak_memory_bytes(c10::Device device);

//! Returns the memory of a device other than the CPU in bytes. Without an index, that of the first one.
std::uint64_t device_memory_bytes(c10::Device device);

void write_file(const std::filesystem::path& path, const std::string& text);

}  // namespace penstock::train
