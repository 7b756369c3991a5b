// Writes tensors to an open file; used by checkpoints and `save_safetensors`.
#pragma once

#include "checkpoint/commit/files.h"

#include <penstock/checkpoint/safetensors.h>

#include <functional>

namespace penstock::checkpoint {

//! Called after the elements of each tensor are written.
using AfterTensor = std::function<void(const SafetensorsEntry& entry, std::span<const std::uint8_t> bytes)>;

//! Writes a complete safetensors file without calling `finish`. Requests one tensor at a time.
void write_safetensors(OutputFile& file, std::vector<SafetensorsEntry> entries,
                       const std::function<at::Tensor(const std::string& name)>& tensor_of,
                       const SafetensorsMetadata& metadata, const AfterTensor& after = {});

//! Writes a temporary file, flushes it and renames it to `path`.
void replace_safetensors(const std::string& path, std::vector<SafetensorsEntry> entries,
                         const std::function<at::Tensor(const std::string& name)>& tensor_of,
                         const SafetensorsMetadata& metadata);

}  // namespace penstock::checkpoint
