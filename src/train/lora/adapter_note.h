// The note of checkpoints about their adapters, as JSON.
#pragma once

#include <penstock/train/adapters.h>
#include <penstock/train/model.h>

#include <optional>
#include <string>

namespace penstock::train {

//! The name of the note.
inline constexpr const char* kAdapterNote = "lora";

//! The note of a run; nullopt without LoRA. Reads a part of the base.
std::optional<AdapterNote> adapter_note_of(const Model& model, const std::optional<InitialWeights>& init);

std::string to_json(const AdapterNote& note);
//! The inverse. Throws ParseError.
AdapterNote parse_adapter_note(const std::string& text);

//! The note among those of a checkpoint or a run; nullopt if there is none.
std::optional<AdapterNote> adapter_note(const checkpoint::Notes& notes);

//! Throws UsageError unless a run with the note `now` can continue one with the note `stored`: both have the
//! same adapters, or none, and the same base.
void check_same_adapters(const std::optional<AdapterNote>& stored, const std::optional<AdapterNote>& now);

}  // namespace penstock::train
