// Clips gradients with any placements: replicated, sharded over some axes, or partial.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace penstock::tensor {

//! Scales the gradients of plain and distributed parameters so that their total norm is at most `max_norm`,
//! and returns the norm before scaling. A plain parameter counts once, as replicated. All ranks of the meshes
//! must call it. Not for shards or stages, whose ranks hold different plain parameters: use
//! Sharded::clip_grad_norm or PipelineSchedule::clip_grad_norm.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0);

}  // namespace penstock::tensor
