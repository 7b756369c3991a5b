// The part of the built-in GPT that each stage of a split runs.
#pragma once

#include <penstock/models/gpt_options.h>
#include <penstock/train/model.h>

#include <vector>

namespace penstock::train {

//! Returns the parts of the stages, in order. Throws UsageError if the split is not one of this GPT.
std::vector<models::GptPart> gpt_parts(const models::GptOptions& options, const ModelSplit& split);

}  // namespace penstock::train
