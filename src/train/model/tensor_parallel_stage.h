// Tensor parallelism in the trainer: the plan of the GPT, and helpers for sharded parameters.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/runtime/stage_module.h>
#include <penstock/train/model.h>

#include <memory>
#include <vector>

namespace penstock::train {

//! Whether a stage gathers its output or returns it as the module computes it.
enum class StageOutput { Full, Sharded };

//! Wraps a part of a GPT as a stage, sharded over the group by heads, feed-forward width and vocabulary.
//! Inputs are full tensors. With `Sharded`, the logits are sharded by classes.
std::shared_ptr<runtime::StageModule> tensor_parallel_stage(const std::shared_ptr<torch::nn::Module>& owner,
                                                            const runtime::StageFunction& forward,
                                                            const comm::Group& group, StageOutput output);

//! The tensor-parallel plan of a GPT or a part of it.
parallel::ParallelPlan gpt_tensor_plan(const torch::nn::Module& module);

//! Shards a stage of an exported model over the group according to the plan of the model. Outputs are full
//! tensors. Throws UsageError for a sharded parameter that other stages also hold.
void shard_graph_stage(graph::GraphModule& module, const parallel::ParallelPlan& plan,
                       const std::vector<runtime::SharedParameter>& shared, const comm::Group& group);

//! Performs the same check before stages are built: throws UsageError if several stages hold a parameter of a
//! module in the plan.
void check_not_shared(const graph::Graph& graph, const parallel::ParallelPlan& plan,
                      const std::vector<runtime::SharedParameter>& shared);

//! Returns the local shard of a parameter or gradient; a plain tensor is returned as is.
at::Tensor local_shard(const at::Tensor& tensor);
//! Returns the full tensor on every rank of its mesh.
at::Tensor gathered(const at::Tensor& tensor);

}  // namespace penstock::train
