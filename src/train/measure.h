// What a step took: each rank's times put together, costs for the planner, and pictures.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/plan/costs.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/schedule/timeline.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::train {

//! Seconds that this rank computed in a step, and the end of its last action.
struct Busy {
  double busy = 0;
  double end = 0;
};
Busy busy_of(const Timeline& timeline);

//! The timelines of all ranks of a pipeline in one. Every rank of the group must call it.
Timeline gather_timeline(const Group& pipeline, const Timeline& mine);

//! Bytes of a stage.
struct StageBytes {
  std::uint64_t output = 0, kept = 0, parameters = 0, optimizer = 0;
};
//! By stage, on every rank, from what each rank knows of its own.
std::vector<StageBytes> gather_bytes(const Group& pipeline, int stages,
                                     const std::map<int, StageBytes>& mine);

//! Mean times of each stage over the timelines. Where a backward was never split, each half counts as half of
//! it, and a whole one where it always was as their sum.
Costs measured_costs(const std::vector<Timeline>& timelines, const std::vector<StageBytes>& bytes);

//! A file for `penstock plan --costs`.
std::string cost_file(const Costs& costs, int microbatches, const std::string& heading);

//! The measured step beside the prediction from the same costs.
std::string timeline_page(const Program& program, const Timeline& measured, const Costs& costs);
std::string timeline_trace(const Timeline& measured);

//! The most memory that this process has ever had, in bytes.
std::uint64_t peak_resident_bytes();

void write_file(const std::string& path, const std::string& text);

}  // namespace penstock::train
