// Selects linear layers by the patterns of LoraOptions.
#pragma once

#include <penstock/train/lora.h>

#include <string>
#include <vector>

namespace penstock::train {

//! Whether a pattern selects the layer with this module path.
bool selects_layer(const LoraOptions& options, const std::string& module);

//! Throws UsageError if a pattern selects none of these layers.
void check_patterns(const LoraOptions& options, const std::vector<std::string>& modules);

}  // namespace penstock::train
