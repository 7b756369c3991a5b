// Two kernels per operator with a rule. Above autograd, differentiable operations redistribute the tensors to
// the placements of the plan: autograd then saves the tensors of the actual computation, and each
// redistribution has its own backward pass. Below autograd, the operator runs on the local shards. Without
// gradients, the first kernel also does the work of the second.
#include "tensor/dispatch/kernels.h"

#include "base/text.h"
#include "tensor/dispatch/autograd.h"
#include "tensor/dispatch/replicas.h"
#include "tensor/dispatch/unknown_ops.h"
#include "tensor/layout/microbatch_values.h"
#include "tensor/layout/result_layout.h"
#include "tensor/rules/rules.h"

#include <penstock/base/error.h>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

namespace penstock::tensor {
namespace {

void put(const OpCall& call, const TensorArg& where, const at::Tensor& tensor) {
  if (where.item < 0) {
    call.arg(where.arg) = tensor;
    return;
  }
  c10::IValue& value = call.arg(where.arg);
  const auto index = static_cast<std::size_t>(where.item);
  if (value.isTensorList()) {
    value.toTensorList().set(index, tensor);
  } else {
    value.toList().set(index, tensor);
  }
}

//! Copies list arguments before their items are replaced, because they are shared with the caller.
void copy_lists(const OpCall& call) {
  for (std::size_t i = 0; i < call.count(); ++i) {
    c10::IValue& value = call.arg(i);
    if (call.tensor_at(i) < 0 || value.isTensor()) continue;
    if (value.isTensorList()) {
      value = value.toTensorList().copy();
    } else {
      value = value.toList().copy();
    }
  }
}

//! Redistributes the tensors of the call as planned. Plain scalars stay plain unless they must be partial.
bool align(OpCall& call, const OpPlan& plan) {
  bool moved = false;
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    TensorArg& arg = call.tensors[i];
    const Placements& want = plan.in[i];
    if (arg.impl && arg.impl->placements() == want) continue;
    if (!arg.impl) {
      const Placements replicated(want.size());
      if (want == replicated && arg.tensor.dim() == 0 && !arg.tensor.requires_grad()) continue;
      if (call.rule.loads) check_loaded(call, arg.tensor);
      arg.tensor = local_to_distributed(arg.tensor, call.mesh, replicated, arg.tensor.sizes());
    }
    arg.tensor = redistributed(arg.tensor, want, true);
    arg.impl = impl_of(arg.tensor);
    put(call, arg, arg.tensor);
    moved = true;
  }
  return moved;
}

//! The axes that shard a dim, as a bit mask.
unsigned axes_of(const Placements& placements, std::size_t dim) {
  unsigned axes = 0;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_shard(static_cast<std::int64_t>(dim))) axes |= 1U << axis;
  }
  return axes;
}

//! A plain tensor that is written counts as replicated: the operator runs on full plain tensors.
bool writes_plain(const OpCall& call) {
  if (!call.rule.writes_first || call.tensors.empty() || call.tensors[0].impl || call.tensors[0].arg != 0)
    return false;
  for (const TensorArg& arg : call.tensors) {
    if (!arg.impl) continue;
    const Placements replicated(arg.impl->placements().size());
    put(call, arg, distributed_to_local(redistributed(arg.tensor, replicated, true), replicated));
  }
  call.op.callBoxed(call.stack);
  return true;
}

//! Global sizes of a result. If sharding is uneven, the size of a sharded dim is that of the input dim that
//! is sharded by the same axes: rules allow uneven sharding only if the result keeps the dim.
Sizes global_sizes(const OpCall& call, const OpPlan& plan, c10::IntArrayRef local,
                   const Placements& placements) {
  Sizes sizes(local.begin(), local.end());
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    const unsigned axes = axes_of(placements, dim);
    if (axes == 0) continue;
    bool uneven = false;
    for (std::size_t i = 0; i < call.tensors.size() && !uneven; ++i) {
      for (std::size_t d = 0; d < call.sizes(i).size() && !uneven; ++d) {
        if (axes_of(plan.in[i], d) != axes) continue;
        uneven = call.sizes(i)[d] % shards_of(static_cast<std::int64_t>(d), plan.in[i], *call.mesh) != 0;
        if (uneven) sizes[dim] = call.sizes(i)[d];
      }
    }
    if (!uneven) sizes[dim] *= shards_of(static_cast<std::int64_t>(dim), placements, *call.mesh);
  }
  return sizes;
}

std::shared_ptr<const MovedFrom> copy_of(const DTensorImpl& from) {
  return std::make_shared<MovedFrom>(
      MovedFrom{c10::weak_intrusive_ptr<c10::StorageImpl>(from.local().storage().getWeakStorageImpl()),
                from.moved_from});
}

//! Records that a view of a redistributed tensor is a view of the copy. Gradients are exempt: autograd
//! accumulates into them.
void note_moved(const OpCall& call, const at::Tensor& asked) {
  DTensorImpl* const copy = call.tensors[0].impl;
  DTensorImpl* const from = impl_of(asked);
  if (!from || !copy || copy == from || torch::autograd::get_current_graph_task_id() >= 0) return;
  copy->moved_from = copy_of(*from);
}

//! Passes on the source of a view. The view of a shard may be a copy even if the dense tensor would be
//! aliased.
void note_source(const DTensorImpl& source, const at::Tensor& result) {
  DTensorImpl* const view = result.defined() ? impl_of(result) : nullptr;
  if (!view) return;
  view->moved_from = source.moved_from;
  if (!view->local().is_alias_of(source.local()) && torch::autograd::get_current_graph_task_id() < 0)
    view->moved_from = copy_of(source);
}

//! Layouts of the results that do not follow from a local shard; empty if they do.
std::vector<GlobalLayout> result_layouts(const OpCall& call) {
  const c10::IValue* const args = &call.arg(0);
  if (call.rule.writes_first) return {};
  if (call.rule.is_view || call.rule.joins) return dense_layouts(call.op, args, call.count());
  if (call.rule.copies) {
    const c10::IValue& format = call.arg(call.count() - 1);
    const at::Tensor& source = call.tensors[0].tensor;
    return {
        {Sizes(source.sizes().begin(), source.sizes().end()),
         copied_strides(source, format.isNone() ? std::nullopt : std::optional(format.toMemoryFormat()))}};
  }
  if (call.rule.kind == OpRule::Kind::Pointwise) {
    const Sizes sizes = broadcast_sizes(call);
    const GlobalLayout one{sizes, pointwise_strides(args, call.count(), sizes)};
    return std::vector<GlobalLayout>(call.results(), one);
  }
  return {};
}

void refuse_lost_write(const c10::OperatorHandle& op, const c10::IValue& target) {
  const auto check = [&](const at::Tensor& tensor) {
    const DTensorImpl* const impl = tensor.defined() ? impl_of(tensor) : nullptr;
    if (!impl || !impl->moved_from || !impl->moved_from->alive()) return;
    throw UsageError(
        "a write to this view with placements " + to_string(impl->placements()) +
            " would not reach its base tensor, which was redistributed to make the view",
        {.op = op.schema().name()},
        "redistribute the tensor to these placements before creating the view, or clone() the view");
  };
  if (target.isTensor()) return check(target.toTensor());
  if (!target.isTensorList()) return;
  for (const at::Tensor& tensor : target.toTensorVector()) check(tensor);
}

//! Runs the call on local shards, after redistribution, and pushes distributed results.
void compute(OpCall& call, const OpPlan& plan) {
  const std::vector<GlobalLayout> layouts = result_layouts(call);
  for (const TensorArg& arg : call.tensors) {
    if (arg.impl) put(call, arg, arg.impl->local());
  }
  if (call.rule.localize) call.rule.localize(call, plan);
  if (call.rule.execute) {
    call.rule.execute(call, plan);
  } else {
    call.op.callBoxed(call.stack);
  }
  Stack& stack = *call.stack;
  if (call.rule.writes_first) {
    stack.back() = call.tensors[0].tensor;
    return;
  }
  // A view of a normal tensor is a normal tensor, even in inference mode.
  std::optional<c10::InferenceMode> normal;
  if (call.rule.is_view && !call.tensors[0].tensor.is_inference() && c10::InferenceMode::is_enabled())
    normal.emplace(false);
  const DTensorImpl* const source = call.rule.is_view ? call.tensors[0].impl : nullptr;
  std::size_t next = 0;
  const auto wrapped = [&](const at::Tensor& local, std::size_t result) {
    const std::size_t index = next++;
    if (!local.defined()) return local;
    const Placements& placements = plan.out[result];
    if (index >= layouts.size())
      return wrap(local, call.mesh, placements, global_sizes(call, plan, local.sizes(), placements));
    at::Tensor tensor = wrap(LocalShard{local, nullptr}, call.mesh, placements, local.scalar_type(),
                             local.device(), layouts[index].sizes, layouts[index].strides);
    if (source) note_source(*source, tensor);
    return tensor;
  };
  const std::size_t base = stack.size() - call.results();
  for (std::size_t i = 0; i < call.results(); ++i) {
    c10::IValue& value = stack[base + i];
    if (value.isTensor()) {
      value = wrapped(value.toTensor(), i);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorList().vec()) list.push_back(wrapped(t, i));
      value = std::move(list);
    }
  }
  if (source && (source->pinned || source->input_request) && stack[base].isTensor()) {
    DTensorImpl* const view = impl_of(stack[base].toTensor());
    view->pinned = source->pinned;
    view->input_request = source->input_request;
  }
}

//! The fast path: a pointwise operator whose tensors all have the same sizes and placements. Null otherwise.
DTensorImpl* same_everywhere(const c10::IValue* args, std::size_t count) {
  DTensorImpl* first = nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    if (!args[i].isTensor()) {
      if (args[i].isList()) return nullptr;
      continue;
    }
    const at::Tensor& tensor = args[i].toTensor();
    if (!tensor.defined()) continue;
    DTensorImpl* const impl = impl_of(tensor);
    if (!impl) {
      if (tensor.dim() != 0 || tensor.requires_grad()) return nullptr;
      continue;
    }
    if (!first) {
      first = impl;
    } else if (impl->mesh_ptr() != first->mesh_ptr() || !(impl->placements() == first->placements()) ||
               impl->sizes() != first->sizes()) {
      return nullptr;
    }
  }
  if (!first) return nullptr;
  for (const AxisPlacement& placement : first->placements()) {
    if (placement.is_partial()) return nullptr;
  }
  return first;
}

//! The strides of the result if they differ from those of `first`.
std::optional<Sizes> other_strides(const OpRule& rule, const c10::IValue* args, std::size_t count,
                                   const DTensorImpl& first) {
  bool contiguous = true;
  for (std::size_t i = 0; i < count && contiguous; ++i) {
    if (!args[i].isTensor()) continue;
    const DTensorImpl* const impl = impl_of(args[i].toTensor());
    contiguous = !impl || impl->is_contiguous();
  }
  if (!rule.copies)
    return contiguous ? std::nullopt : std::optional(pointwise_strides(args, count, first.sizes()));
  const c10::IValue& last = args[count - 1];
  const auto format = last.isNone() ? at::MemoryFormat::Preserve : last.toMemoryFormat();
  if (contiguous && (format == at::MemoryFormat::Preserve || format == at::MemoryFormat::Contiguous))
    return std::nullopt;
  return copied_strides(args[0].toTensor(), format);
}

void run_same(const c10::OperatorHandle& op, const OpRule& rule, Stack* stack, std::size_t count,
              const DTensorImpl& first) {
  c10::IValue* const args = stack->data() + (stack->size() - count);
  const std::optional<Sizes> strides = other_strides(rule, args, count, first);
  // Keeps `first` alive while the local shard occupies its slot on the stack.
  const auto keep = c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(
      const_cast<DTensorImpl*>(&first));  // NOLINT: reference counting only
  for (std::size_t i = 0; i < count; ++i) {
    if (!args[i].isTensor()) continue;
    if (const DTensorImpl* impl = impl_of(args[i].toTensor())) args[i] = impl->local();
  }
  op.callBoxed(stack);
  const std::size_t results = op.schema().returns().size();
  for (std::size_t i = stack->size() - results; i < stack->size(); ++i) {
    at::Tensor local = std::move((*stack)[i]).toTensor();
    if (!local.defined()) continue;
    at::Tensor result = at::detail::make_tensor<DTensorImpl>(std::move(local), first);
    if (strides) result.unsafeGetTensorImpl()->set_sizes_and_strides(first.sizes(), *strides);
    (*stack)[i] = std::move(result);
  }
}

bool any_requires_grad(const c10::IValue* args, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (args[i].isTensor() && args[i].toTensor().defined() && args[i].toTensor().requires_grad()) return true;
    if (args[i].isList() && !args[i].isIntList()) {
      for (const c10::IValue& element : args[i].toListRef()) {
        if (element.isTensor() && element.toTensor().defined() && element.toTensor().requires_grad())
          return true;
      }
    }
  }
  return false;
}

//! Redistributes an input as the style of the parameter requests.
void apply_input_request(OpCall& call) {
  for (const TensorArg& arg : call.tensors) {
    if (!arg.impl || !arg.impl->input_request) continue;
    for (TensorArg& other : call.tensors) {
      if (&other == &arg || (other.impl && other.impl->pinned) || other.tensor.dim() < 2) continue;
      if (!other.impl) {
        other.tensor = local_to_distributed(other.tensor, call.mesh, Placements(call.mesh->shape.size()),
                                            other.tensor.sizes());
        other.impl = impl_of(other.tensor);
      }
      Placements want = other.impl->placements();
      const Placements& input_request = arg.impl->input_request->input;
      for (std::size_t axis = 0; axis < want.size() && axis < input_request.size(); ++axis) {
        const bool fits =
            !input_request[axis].is_shard() || input_request[axis].dim() < other.tensor.dim() - 1;
        if (fits) want[axis] = input_request[axis];
      }
      other.tensor = redistributed(other.tensor, want, true);
      other.impl = impl_of(other.tensor);
      put(call, other, other.tensor);
      break;
    }
    return;
  }
}

struct BeforeAutograd : c10::OperatorKernel {
  explicit BeforeAutograd(OpRule r) : rule(r) {}
  OpRule rule;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const std::size_t count = op.schema().arguments().size();
    const bool recorded =
        rule.writes_first || rule.is_view || rule.composite ||
        (c10::GradMode::is_enabled() && any_requires_grad(stack->data() + (stack->size() - count), count));
    if (rule.writes_first) refuse_lost_write(op, (*stack)[stack->size() - count]);
    auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kBeforeKey);
    // Autocast runs below this kernel and calls the operator again. The replacement must see converted
    // arguments.
    if (rule.replace && keys.has_any(rule.autocasts)) return op.redispatchBoxed(below, stack);
    if (rule.kind == OpRule::Kind::Pointwise) {
      if (const DTensorImpl* same = same_everywhere(stack->data() + (stack->size() - count), count)) {
        if (recorded) return op.redispatchBoxed(below, stack);
        return run_same(op, rule, stack, count, *same);
      }
    }
    if (rule.kind == OpRule::Kind::Identity && recorded) return op.redispatchBoxed(below, stack);
    OpCall call(op, rule, stack);
    if (!call.mesh) return op.redispatchBoxed(below, stack);
    copy_lists(call);
    if (writes_plain(call)) return;
    if (rule.applies_input_request) apply_input_request(call);
    const OpPlan plan = make_plan(call);
    const at::Tensor asked = rule.is_view && !call.tensors.empty() ? call.tensors[0].tensor : at::Tensor();
    const bool moved = align(call, plan);
    if (moved && asked.defined()) note_moved(call, asked);
    if (rule.replace && rule.replace(call)) return;
    // Tensors that were redistributed in inference mode are inference tensors, whatever their source.
    if (moved && c10::InferenceMode::is_enabled())
      below = below - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    if (recorded) return op.redispatchBoxed(below, stack);
    compute(call, plan);
  }
};

struct OnShards : c10::OperatorKernel {
  explicit OnShards(OpRule r) : rule(r) {}
  OpRule rule;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
    const std::size_t count = op.schema().arguments().size();
    if (rule.kind == OpRule::Kind::Identity && count == 1) {
      // A second handle to the local shard, which may be pending: nothing has used it yet.
      const DTensorImpl* const impl = impl_of(stack->back().toTensor());
      stack->back() = at::Tensor(impl->shallow_copy_and_detach(c10::VariableVersion(0), true));
      return;
    }
    if (rule.kind == OpRule::Kind::Pointwise && !rule.writes_first) {
      if (const DTensorImpl* same = same_everywhere(stack->data() + (stack->size() - count), count)) {
        return run_same(op, rule, stack, count, *same);
      }
    }
    OpCall call(op, rule, stack);
    run_on_shards(call);
  }
};

class Registration {
 public:
  Registration()
      : others_(torch::Library::IMPL, "_", kBeforeKey, __FILE__, __LINE__),
        fallback_(torch::Library::IMPL, "_", kBackendKey, __FILE__, __LINE__),
        before_(torch::Library::IMPL, "aten", kBeforeKey, __FILE__, __LINE__),
        shards_(torch::Library::IMPL, "aten", kBackendKey, __FILE__, __LINE__) {
    others_.fallback(torch::CppFunction::makeFallthrough());
    fallback_.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_or_replicate>());
    RuleTable table;
    add_pointwise_rules(table);
    add_matmul_rules(table);
    add_view_rules(table);
    add_reduction_rules(table);
    add_norm_rules(table);
    add_loss_rules(table);
    add_index_rules(table);
    add_random_rules(table);
    add_attention_rules(table);
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (auto& [name, rule] : table) {
      const std::size_t dot = name.find('.');
      const auto op = dispatcher.findSchema(
          {"aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
      if (!op) continue;  // not in this version of libtorch
      if (!op->schema().arguments().empty()) {
        const c10::AliasInfo* alias = op->schema().arguments()[0].alias_info();
        rule.writes_first = alias && alias->isWrite();
        rule.is_view = alias && !alias->isWrite();
      }
      rule.copies =
          !op->schema().arguments().empty() && op->schema().arguments().back().name() == "memory_format";
      for (const c10::DispatchKey key : c10::autocast_dispatch_keyset) {
        if (op->hasKernelForDispatchKey(key)) rule.autocasts = rule.autocasts.add(key);
      }
      before_.impl(name.c_str(),
                   torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BeforeAutograd>(rule)));
      if (rule.composite) continue;
      shards_.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<OnShards>(rule)));
    }
    for (const char* name : {"_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"})
      before_.impl(name, torch::CppFunction::makeFromBoxedFunction<&step_shards>());
    // `set_data` asks. libtorch compares the keys, which depend on the device: modules could not be moved.
    before_.impl("_has_compatible_shallow_copy_type", [](const at::Tensor& self, const at::Tensor& from) {
      return impl_of(self) != nullptr && impl_of(from) != nullptr;
    });
    register_refusals(shards_, table);
    register_decompositions(before_);
    register_tensor_values();
  }

 private:
  torch::Library others_, fallback_, before_, shards_;
};

}  // namespace

void run_on_shards(OpCall& call) {
  copy_lists(call);
  if (writes_plain(call)) return;
  const OpPlan plan = make_plan(call);
  align(call, plan);
  compute(call, plan);
}

void register_kernels() {
  static const Registration once;
}

}  // namespace penstock::tensor
