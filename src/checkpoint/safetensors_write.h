// Writing of tensors to an open file, which checkpoints share with `save_safetensors`.
#pragma once

#include "checkpoint/files.h"

#include <penstock/checkpoint/safetensors.h>

namespace penstock {

//! Writes all of a safetensors file but does not finish it.
void write_safetensors(OutputFile& file, const std::map<std::string, at::Tensor>& tensors,
                       const SafetensorsMetadata& metadata);

}  // namespace penstock
