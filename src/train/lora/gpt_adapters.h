// Adapters of the built-in GPT.
#pragma once

#include <penstock/models/gpt.h>
#include <penstock/train/lora.h>

namespace penstock::train {

//! Adds adapters with their initial values to the selected layers of a GPT or a part of it, and freezes all
//! other parameters. The patterns need not select a layer of this part.
void add_adapters(models::GptImpl& model, const LoraOptions& options);

//! The layers of a GPT that the options select. Throws UsageError if the options are invalid or a pattern
//! selects no layer.
Lora selected_layers(const models::GptImpl& model, const LoraOptions& options);

}  // namespace penstock::train
