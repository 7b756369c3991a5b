// Writing of tensors to an open file, which checkpoints share with `save_safetensors`.
#pragma once

#include "checkpoint/files.h"

#include <penstock/checkpoint/safetensors.h>

#include <functional>

namespace penstock {

//! Called after the elements of each tensor.
using AfterTensor = std::function<void(const SafetensorsEntry& entry, std::span<const std::uint8_t> bytes)>;

//! Writes all of a safetensors file but does not finish it. Tensors are asked for one at a time.
void write_safetensors(OutputFile& file, std::vector<SafetensorsEntry> entries,
                       const std::function<at::Tensor(const std::string& name)>& tensor_of,
                       const SafetensorsMetadata& metadata, const AfterTensor& after = {});

//! Writes a whole file aside, flushes it, and gives it its name.
void replace_safetensors(const std::string& path, std::vector<SafetensorsEntry> entries,
                         const std::function<at::Tensor(const std::string& name)>& tensor_of,
                         const SafetensorsMetadata& metadata);

}  // namespace penstock
