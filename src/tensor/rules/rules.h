// Sharding rules: for each operator, the combinations of placements on one mesh axis under which computing on
// local shards gives local shards of the result. call_plan.cpp picks the cheapest combination for each axis.
// CONTRIBUTING.md says how to add a rule.
#pragma once

#include "tensor/dispatch/dtensor_impl.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace penstock::tensor {

using Stack = torch::jit::Stack;
struct OpPlan;
struct OpRule;

//! A tensor argument: item `item` of a tensor list, or the argument itself (-1).
struct TensorArg {
  std::size_t arg = 0;
  int item = -1;
  at::Tensor tensor;
  DTensorImpl* impl = nullptr;  //!< null for a plain tensor; after redistribution, all but scalars have one
};

//! A valid combination on one axis, in the order of the call's tensors and results.
struct Option {
  c10::SmallVector<AxisPlacement, 6> in;
  c10::SmallVector<AxisPlacement, 3> out;
  double bytes = 0;  //!< communication of the kernel itself
};

//! One operator call: its arguments on top of the stack, and the tensors among them.
class OpCall {
 public:
  //! Plain tensors in a call with distributed ones count as replicated.
  OpCall(const c10::OperatorHandle& op, const OpRule& rule, Stack* stack);

  const c10::OperatorHandle& op;
  const OpRule& rule;
  Stack* stack;
  MeshPtr mesh;
  c10::SmallVector<TensorArg, 4> tensors;

  std::size_t count() const { return args_; }
  c10::IValue& arg(std::size_t i) const { return (*stack)[base_ + i]; }
  //! The index in `tensors` of an argument's (first) tensor, or -1.
  int tensor_at(std::size_t arg) const;
  c10::IntArrayRef sizes(std::size_t tensor) const { return tensors[tensor].tensor.sizes(); }
  std::int64_t dims(std::size_t tensor) const { return tensors[tensor].tensor.dim(); }
  AxisPlacement at(std::size_t tensor, int axis) const {
    const DTensorImpl* impl = tensors[tensor].impl;
    return impl ? impl->placements()[static_cast<std::size_t>(axis)] : AxisPlacement();
  }
  //! An `int` argument that is a dim of a tensor, made positive. Throws the libtorch error if out of range.
  std::int64_t dim_arg(std::size_t arg, std::int64_t dims) const;
  std::size_t results() const { return op.schema().returns().size(); }
  std::int64_t ranks(int axis) const { return mesh->shape[static_cast<std::size_t>(axis)]; }
  //! While planning: the plan for the axes before the current one.
  mutable const OpPlan* so_far = nullptr;
  //! The number of shards of a dim if this axis shards it too: earlier axes as planned, later ones as they
  //! are.
  std::int64_t shards_if_sharded(std::size_t tensor, std::int64_t dim, int axis) const;

  //! The option with all tensors replicated.
  Option option() const;

 private:
  std::size_t base_ = 0, args_ = 0;
};

//! `aten::mm of [2, 3] [Shard(0)] and …`, for error messages.
std::string to_string(const OpCall& call);

//! Placements of all tensors of a call and of its results.
struct OpPlan {
  c10::SmallVector<Placements, 4> in;
  c10::SmallVector<Placements, 2> out;
};

using Options = std::vector<Option>;

struct OpRule {
  //! Adds options to the list, which starts with "all replicated". A rule may clear it first if replicated
  //! tensors are not an option.
  void (*options)(const OpCall& call, int axis, Options& options) = nullptr;
  //! Adapts non-tensor arguments (such as the sizes of a view) to the local shards.
  void (*localize)(const OpCall& call, const OpPlan& plan) = nullptr;
  //! Computes on the local shards instead of the operator: pops its arguments from the stack and pushes
  //! results.
  void (*execute)(const OpCall& call, const OpPlan& plan) = nullptr;
  //! Replaces the operator above autograd, after redistribution. Returns false if it does not handle this
  //! call.
  bool (*replace)(const OpCall& call) = nullptr;
  enum class Kind { Other, Pointwise, Identity } kind = Kind::Other;
  //! For pointwise operators: from which arguments partial sums may propagate to the result.
  enum class Linear {
    No,       //!< none: partial sums are reduced first
    All,      //!< all together, as in a + b
    First,    //!< the first one, with the others replicated, as in a / b
    Product,  //!< any one of them, with the others replicated, as in a * b
  } linear = Linear::No;
  bool writes_first = false;  //!< the operator writes to its first argument
  bool is_view = false;
  bool composite = false;              //!< has no kernel below autograd
  bool applies_input_request = false;  //!< its input is redistributed as the style of its parameter requests
  c10::DispatchKeySet autocasts{};     //!< the kinds of autocast that convert its arguments
  bool copies = false;                 //!< its last argument is a memory format
  bool joins = false;  //!< cat and stack: the strides of the result differ from those of its shards
  bool loads = false;  //!< a plain tensor that it copies from must be equal on every rank
};

using RuleTable = std::unordered_map<std::string, OpRule>;

void add_pointwise_rules(RuleTable& table);
void add_matmul_rules(RuleTable& table);
void add_view_rules(RuleTable& table);
void add_reduction_rules(RuleTable& table);
void add_norm_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);
void add_index_rules(RuleTable& table);
void add_random_rules(RuleTable& table);
void add_attention_rules(RuleTable& table);

//! The kernel of fused optimizer steps such as `_fused_adamw_`.
void step_shards(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

//! Adds the options of an operator that maps the dims of its first tensor to dims of its results (-1: the dim
//! must not be sharded). Other tensors are replicated. Partial values propagate if `linear`.
template <class Map>
void map_dims(const OpCall& call, int axis, Options& options, bool linear, const Map& map) {
  const AxisPlacement here = call.at(0, axis);
  const auto add = [&](const AxisPlacement& in, const AxisPlacement& out) {
    Option option = call.option();
    option.in[0] = in;
    for (AxisPlacement& placement : option.out) placement = out;
    options.push_back(option);
  };
  switch (here.kind()) {
    case AxisPlacement::Kind::Replicate:
      return;
    case AxisPlacement::Kind::Partial:
      if (linear) add(here, here);
      return;
    case AxisPlacement::Kind::Shard:
      break;
  }
  if (const std::int64_t to = map(here.dim()); to >= 0) return add(here, Shard(to));
  // Resharding along another dim may be possible, at the cost of an all-to-all.
  for (std::int64_t dim = 0; dim < call.dims(0); ++dim) {
    const std::int64_t to = map(dim);
    if (to >= 0 && call.sizes(0)[static_cast<std::size_t>(dim)] % call.shards_if_sharded(0, dim, axis) == 0) {
      add(Shard(dim), Shard(to));
    }
  }
}

//! Pops the arguments from the stack and pushes these results.
template <class... Results>
void finish(const OpCall& call, Results&&... results) {
  torch::jit::drop(*call.stack, call.count());
  torch::jit::push(*call.stack, std::forward<Results>(results)...);
}

//! The result sizes of a pointwise operator. Throws ShapeError if the global sizes do not broadcast, even if
//! those of the shards do.
Sizes broadcast_sizes(const OpCall& call);

//! Whether conversion commutes with the reduction of a partial value. It does not for float to integer: 0.6 +
//! 0.6 converts to 1, but each term to 0.
bool converts_partial(at::ScalarType from, at::ScalarType to, comm::ReduceOp reduce);

//! The cheapest valid plan. Throws UsageError if an in-place operator has none.
OpPlan make_plan(const OpCall& call);

}  // namespace penstock::tensor
