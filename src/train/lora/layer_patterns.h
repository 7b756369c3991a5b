// Selects layers by the patterns of LoraOptions.
#pragma once

#include <penstock/train/lora.h>

#include <string>
#include <vector>

namespace penstock::train {

//! Whether a pattern selects the linear layer with this module path.
bool selects_layer(const LoraOptions& options, const std::string& module);
//! Whether a pattern selects the embedding with this module path: that of a module that contains it does not.
bool selects_embedding(const LoraOptions& options, const std::string& module);

//! Throws UsageError if a pattern selects none of these layers, which are given by their module paths.
void check_patterns(const LoraOptions& options, const std::vector<std::string>& linear,
                    const std::vector<std::string>& embeddings);

}  // namespace penstock::train
