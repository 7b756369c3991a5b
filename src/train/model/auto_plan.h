// AutoSchedule: measures a few steps and plans a schedule from the measured costs.
#pragma once

#include "train/model/assembly.h"

#include <penstock/plan/costs.h>
#include <penstock/train/data.h>

#include <string>

namespace penstock::train {

//! Measures on the devices of the ranks and plans; returns the same schedule on every rank. Does not change
//! parameters.
schedule::Schedule plan_schedule(const tensor::DeviceMesh& mesh, at::Device device, const Model& model,
                                 const ModelSplit& split, const DataSource& data, const RunOptions& options,
                                 Progress& progress);

//! Plans for the memory of the device. If no schedule fits, returns the fastest: the costs may be too high.
schedule::Schedule auto_schedule(const ParallelOptions& options, const plan::Costs& costs, at::Device device);

//! Converts a plan to text and back.
std::string plan_text(const schedule::Schedule& schedule);
schedule::Schedule read_plan(const std::string& text);

//! Returns the rows of accumulated part `part` of the batch share of a replica.
Rows rows_of(const RunOptions& options, int replica, std::int64_t part);

}  // namespace penstock::train
