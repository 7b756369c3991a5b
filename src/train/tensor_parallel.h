// Tensor parallelism in the trainer: the GPT's plan, and what a run must know of parameters that are cut over
// ranks.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/runtime/stage_module.h>
#include <penstock/train/model.h>

#include <memory>
#include <vector>

namespace penstock::train {

enum class StageOutput { Whole, AsItIs };

//! A GPT's part as a stage, cut over the group by heads, by the feed-forward's width and by vocabulary. What
//! goes in is whole; logits that come out as they are, are cut by classes.
std::shared_ptr<StageModule> tensor_parallel_stage(const std::shared_ptr<torch::nn::Module>& owner,
                                                   const StageFunction& forward, const Group& tensors,
                                                   StageOutput output);

//! A stage of an exported model, cut over the group as the plan of the whole model says. What comes out is
//! whole. UsageError for a cut parameter that other stages hold too.
void cut_graph_stage(GraphModule& module, const ParallelPlan& plan,
                     const std::vector<SharedParameter>& shared, const Group& tensors);

//! The same before stages are made: UsageError for a parameter of a module of the plan that several stages
//! hold.
void check_not_shared(const Graph& graph, const ParallelPlan& plan,
                      const std::vector<SharedParameter>& shared);

//! This rank's elements of a parameter or of its gradient; the tensor itself where it is not cut.
at::Tensor local_part(const at::Tensor& tensor);
//! The whole, on every rank of the tensor's mesh.
at::Tensor whole_of(const at::Tensor& tensor);

}  // namespace penstock::train
