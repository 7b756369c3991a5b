// Runs a stage's module on one microbatch, with its random numbers, and where asked for so that its
// activations are computed again in the backward instead of kept.
#pragma once

#include <penstock/runtime/random.h>
#include <penstock/runtime/stage.h>

namespace penstock {

StageResult run_module(const PipelineStage& stage, const Args& args, const Kwargs& kwargs,
                       const RandomKey& key);

}  // namespace penstock
