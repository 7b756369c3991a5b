// Sharding rules: for each operator the combinations of placements, on one axis of the mesh, under which
// computing on the parts gives parts of the result. plan.cpp picks the cheapest of them for each axis.
#pragma once

#include "tensor/impl.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace penstock {

using Stack = torch::jit::Stack;
struct OpPlan;
struct OpRule;

//! A tensor among the arguments: the `item`-th of a list, or the argument itself (-1).
struct TensorArg {
  std::size_t arg = 0;
  int item = -1;
  at::Tensor tensor;
  DTensorImpl* impl = nullptr;  //!< null for a number, which is the same everywhere
};

//! A legal combination on one axis, in the order of the call's tensors and of the results.
struct Option {
  c10::SmallVector<AxisPlacement, 6> in;
  c10::SmallVector<AxisPlacement, 3> out;
  double bytes = 0;  //!< what the kernel itself communicates
};

//! One call of an operator: its arguments on top of the stack, and the tensors among them.
class OpCall {
 public:
  //! Plain tensors beside distributed ones are taken as replicated.
  OpCall(const c10::OperatorHandle& op, const OpRule& rule, Stack* stack);

  const c10::OperatorHandle& op;
  const OpRule& rule;
  Stack* stack;
  MeshPtr mesh;
  c10::SmallVector<TensorArg, 4> tensors;

  std::size_t count() const { return args_; }
  c10::IValue& arg(std::size_t i) const { return (*stack)[base_ + i]; }
  //! The number of an argument's (first) tensor among `tensors`, or -1.
  int tensor_at(std::size_t arg) const;
  c10::IntArrayRef sizes(std::size_t tensor) const { return tensors[tensor].tensor.sizes(); }
  std::int64_t dims(std::size_t tensor) const { return tensors[tensor].tensor.dim(); }
  AxisPlacement at(std::size_t tensor, int axis) const {
    const DTensorImpl* impl = tensors[tensor].impl;
    return impl ? impl->placements()[static_cast<std::size_t>(axis)] : AxisPlacement();
  }
  //! An `int` argument that names a dim of a tensor, made positive. Throws what libtorch throws.
  std::int64_t dim_arg(std::size_t arg, std::int64_t dims) const;
  std::size_t results() const { return op.schema().returns().size(); }
  std::int64_t ranks(int axis) const { return mesh->shape[static_cast<std::size_t>(axis)]; }
  //! The plan for the axes before the one in question, while it is made.
  mutable const OpPlan* so_far = nullptr;
  //! Parts that a tensor's dim would have if this axis cut it too: with those of earlier axes as planned, of
  //! later ones as they are.
  std::int64_t parts_with(std::size_t tensor, std::int64_t dim, int axis) const;

  //! All replicated.
  Option option() const;

  //! `aten::mm of float [2, 3] [Shard(0)] and …`, for messages.
  std::string text() const;

 private:
  std::size_t base_ = 0, args_ = 0;
};

//! Where every tensor of a call shall be, and where its results are then.
struct OpPlan {
  c10::SmallVector<Placements, 4> in;
  c10::SmallVector<Placements, 2> out;
};

using Options = std::vector<Option>;

struct OpRule {
  //! Adds the options beside "all replicated".
  void (*options)(const OpCall& call, int axis, Options& options) = nullptr;
  //! Changes other arguments than tensors for the call on the parts (sizes of views).
  void (*localize)(const OpCall& call, const OpPlan& plan) = nullptr;
  //! Computes on the parts in place of the operator: takes its arguments from the stack and leaves results.
  void (*execute)(const OpCall& call, const OpPlan& plan) = nullptr;
  //! Takes the place of the operator above autograd; the tensors have been moved. False: not for this call.
  bool (*whole)(const OpCall& call) = nullptr;
  enum class Kind { Other, Pointwise, Identity } kind = Kind::Other;
  //! Of pointwise operators: how partial sums pass.
  enum class Linear { No, All, First, Product } linear = Linear::No;
  bool writes_first = false;  //!< in place
  bool is_view = false;
  bool composite = false;    //!< has no kernel of its own below autograd
  bool grants_wish = false;  //!< its input goes where its parameter's style wants it
  bool autocasts = false;    //!< autocast converts its arguments
  bool copies = false;       //!< takes a memory format, as its last argument
  bool joins = false;        //!< cat and stack: the result's strides are not those of its shards
  bool loads = false;        //!< a plain tensor that it writes must be the same on every rank
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

//! The kernel of fused optimizer steps, `_fused_adamw_` and its like.
void step_parts(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

//! Options of an operator that maps the dims of its first tensor to dims of its results (-1: needs it whole);
//! the other tensors are replicated. Partial values pass if `linear`.
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
  // Another dim may do, at the price of an exchange.
  for (std::int64_t dim = 0; dim < call.dims(0); ++dim) {
    const std::int64_t to = map(dim);
    if (to >= 0 && call.sizes(0)[static_cast<std::size_t>(dim)] % call.parts_with(0, dim, axis) == 0) {
      add(Shard(dim), Shard(to));
    }
  }
}

//! Takes the arguments off the stack and leaves these results.
template <class... Results>
void finish(const OpCall& call, Results&&... results) {
  torch::jit::drop(*call.stack, call.count());
  torch::jit::push(*call.stack, std::forward<Results>(results)...);
}

//! The sizes of a pointwise operator's result. ShapeError where the tensors' sizes do not broadcast: shards
//! of such tensors might.
Sizes broadcast_sizes(const OpCall& call);

//! Whether converting the contributions to a partial value and reducing them afterwards gives the same as
//! reducing first: 0.6 + 0.6 is 1 as an integer, and each of them 0.
bool converts_partial(at::ScalarType from, at::ScalarType to, ReduceOp reduce);

//! The cheapest legal plan; throws UsageError where an operator in place has none.
OpPlan make_plan(const OpCall& call);

}  // namespace penstock
