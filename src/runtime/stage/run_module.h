// Runs the module of a stage on one microbatch in its random scope, with recomputation if
// StageOptions::recompute is set.
#pragma once

#include <penstock/runtime/random.h>
#include <penstock/runtime/stage.h>

namespace penstock::runtime {

StageResult run_module(const PipelineStage& stage, const value::Args& args, const value::Kwargs& kwargs,
                       const RandomKey& key);

}  // namespace penstock::runtime
