// Weights outside of checkpoints: the files of Hugging Face, and access to plain safetensors files.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/safetensors.h>

#include <filesystem>

namespace penstock::checkpoint {

constexpr const char* kHubIndexName = "model.safetensors.index.json";
constexpr const char* kHubFileName = "model.safetensors";

//! Opens a safetensors file of any name.
Checkpoint open_safetensors(const std::filesystem::path& file);

//! The metadata of the first safetensors file of the weights; empty if there is none.
SafetensorsMetadata file_metadata(const Checkpoint& weights);

}  // namespace penstock::checkpoint
