// Derives a tensor-parallel plan for a run that needs one.
#pragma once

#include <penstock/parallel/find_parallel_plan.h>

#include <cstdint>
#include <string>

namespace penstock::parallel {

//! Like `find_parallel_plan`, but throws UsageError with this hint if no pair is found.
FoundPlan require_parallel_plan(const graph::Graph& graph, std::int64_t ranks, const std::string& hint);

}  // namespace penstock::parallel
