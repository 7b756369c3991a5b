// Uses libtorch's fused kernels for SGD and Adam: one call for all parameters of a group. All optimizers have
// the arithmetic of Python's torch.optim.
#include "train/loop/optimizer.h"

#include "train/model/tensor_parallel_stage.h"

#include <ATen/Tensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

namespace penstock::train {
namespace {

constexpr const char* kCount = "step";

double epsilon_of(const OptimizerOptions& options) {
  return options.epsilon.value_or(options.kind == OptimizerKind::Adagrad ? 1e-10 : 1e-8);
}

}  // namespace

struct Optimizer::Batch {
  std::vector<at::Tensor> values, grads, counts;
  std::map<std::string, std::vector<at::Tensor>> states;

  const std::vector<at::Tensor>& state(const char* kind) const {
    static const std::vector<at::Tensor> none;
    const auto it = states.find(kind);
    return it == states.end() ? none : it->second;
  }
};

std::vector<std::string> Optimizer::state_kinds() const {
  std::vector<std::string> kinds;
  switch (options_.kind) {
    case OptimizerKind::Sgd:
      if (options_.momentum > 0) kinds.emplace_back("momentum_buffer");
      break;
    case OptimizerKind::AdamW:
    case OptimizerKind::Adam:
      kinds = {"exp_avg", "exp_avg_sq"};
      if (options_.amsgrad) kinds.emplace_back("max_exp_avg_sq");
      break;
    case OptimizerKind::Adagrad:
      kinds = {"sum"};
      break;
    case OptimizerKind::RmsProp:
      kinds = {"square_avg"};
      if (options_.centered) kinds.emplace_back("grad_avg");
      if (options_.momentum > 0) kinds.emplace_back("momentum_buffer");
      break;
  }
  return kinds;
}

// In the first step, dampening does not apply to the gradient that becomes the momentum.
bool Optimizer::treats_first_step_differently() const {
  return options_.kind == OptimizerKind::Sgd && options_.momentum > 0 && options_.dampening != 0;
}

bool Optimizer::has_counts() const {
  return options_.kind != OptimizerKind::Sgd || treats_first_step_differently();
}

Optimizer::Optimizer(std::vector<value::NamedTensor> parameters, const OptimizerOptions& options,
                     const ParameterGroups& groups)
    : options_(options), parameters_(std::move(parameters)), started_(parameters_.size(), false) {
  const at::NoGradGuard no_grad;
  for (const value::NamedTensor& item : parameters_) {
    const at::Tensor value = local_shard(item.tensor);
    groups_.push_back(groups.of(item.name));
    for (const std::string& kind : state_kinds()) {
      const double initial = kind == "sum" ? options_.initial_accumulator : 0;
      states_[kind].push_back(at::full_like(value, initial, {}, at::MemoryFormat::Preserve));
    }
    if (has_counts()) counts_.push_back(at::full({}, 0.0, value.options().dtype(at::kFloat)));
  }
}

void Optimizer::zero_grad() {
  for (value::NamedTensor& item : parameters_) item.tensor.mutable_grad() = at::Tensor();
}

void Optimizer::scale_gradients(double factor) {
  const at::NoGradGuard no_grad;
  for (value::NamedTensor& item : parameters_)
    if (item.tensor.grad().defined()) item.tensor.mutable_grad().mul_(factor);
}

void Optimizer::step(double rate) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<double, bool>, Members> groups;  // by rate scale and decay
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].tensor.grad().defined())
      groups[{groups_[i].rate_scale, groups_[i].decays}].push_back(i);
  for (const auto& [group, members] : groups)
    update(members, rate * group.first, group.second ? options_.weight_decay : 0);
}

Optimizer::Batch Optimizer::batch_of(const Members& members) const {
  Batch batch;
  for (const std::size_t i : members) {
    const at::Tensor value = local_shard(parameters_[i].tensor);
    at::Tensor grad = local_shard(parameters_[i].tensor.grad());
    if (grad.strides() != value.strides()) grad = at::zeros_like(value).copy_(grad);
    batch.values.push_back(value);
    batch.grads.push_back(grad);
    for (const auto& [kind, tensors] : states_) batch.states[kind].push_back(tensors[i]);
    if (has_counts()) batch.counts.push_back(counts_[i]);
  }
  return batch;
}

// Reads the counts of parameters that have not been updated since the run started or resumed.
std::map<bool, Optimizer::Members> Optimizer::by_first_step(const Members& members) {
  std::map<bool, Members> parts;
  for (const std::size_t i : members) {
    const bool first = treats_first_step_differently() && !started_[i] && counts_[i].item<double>() == 0;
    started_[i] = true;
    parts[first].push_back(i);
  }
  return parts;
}

namespace {

// Adds the weight decay to the gradient.
at::Tensor decayed(const at::Tensor& grad, const at::Tensor& value, double weight_decay) {
  return weight_decay == 0 ? grad : grad.add(value, weight_decay);
}

void adagrad(const at::Tensor& value, const at::Tensor& grad, const at::Tensor& sum, const at::Tensor& count,
             double rate, double weight_decay, const OptimizerOptions& options) {
  const at::Tensor g = decayed(grad, value, weight_decay);
  sum.addcmul_(g, g);
  const at::Tensor root = sum.sqrt().add_(epsilon_of(options));
  if (options.rate_decay == 0) {
    value.addcdiv_(g, root, -rate);
  } else {  // the rate stays on the device of the count
    const at::Tensor divisor = 1 + (count - 1) * options.rate_decay;
    value.sub_((g / root) * (rate / divisor));
  }
}

// The fused kernel exists only for the CPU.
bool can_fuse_adagrad(const std::vector<at::Tensor>& values) {
  return std::all_of(values.begin(), values.end(), [](const at::Tensor& value) {
    return value.is_cpu() && value.is_non_overlapping_and_dense();
  });
}

void rms_prop(const at::Tensor& value, const at::Tensor& grad, const at::Tensor& square_avg,
              const at::Tensor& grad_avg, const at::Tensor& momentum, double rate, double weight_decay,
              const OptimizerOptions& options) {
  const at::Tensor g = decayed(grad, value, weight_decay);
  square_avg.mul_(options.alpha).addcmul_(g, g, 1 - options.alpha);
  at::Tensor root;
  if (options.centered) {
    grad_avg.lerp_(g, 1 - options.alpha);
    root = square_avg.addcmul(grad_avg, grad_avg, -1).sqrt_();
  } else {
    root = square_avg.sqrt();
  }
  root.add_(epsilon_of(options));
  if (options.momentum == 0) {
    value.addcdiv_(g, root, -rate);
  } else {
    momentum.mul_(options.momentum).addcdiv_(g, root);
    value.add_(momentum, -rate);
  }
}

}  // namespace

void Optimizer::update(const Members& members, double rate, double weight_decay) {
  if (options_.kind == OptimizerKind::Sgd) {
    for (const auto& [first, part] : by_first_step(members)) {
      const Batch batch = batch_of(part);
      if (has_counts()) at::_foreach_add_(batch.counts, 1);
      at::_fused_sgd_(batch.values, batch.grads, batch.state("momentum_buffer"), weight_decay,
                      options_.momentum, rate, options_.dampening, options_.nesterov, /*maximize=*/false,
                      first);
    }
    return;
  }
  const Batch batch = batch_of(members);
  at::_foreach_add_(batch.counts, 1);
  const auto fused = [&](auto&& kernel) {
    kernel(batch.values, batch.grads, batch.state("exp_avg"), batch.state("exp_avg_sq"),
           batch.state("max_exp_avg_sq"), batch.counts, rate, options_.beta1, options_.beta2, weight_decay,
           epsilon_of(options_), options_.amsgrad, /*maximize=*/false);
  };
  const auto state = [&](const char* kind, std::size_t i) {
    const std::vector<at::Tensor>& tensors = batch.state(kind);
    return tensors.empty() ? at::Tensor() : tensors[i];
  };
  switch (options_.kind) {
    case OptimizerKind::Sgd:
      return;
    case OptimizerKind::AdamW:
      return fused([](auto&&... args) { at::_fused_adamw_(args...); });
    case OptimizerKind::Adam:
      return fused([](auto&&... args) { at::_fused_adam_(args...); });
    case OptimizerKind::Adagrad:
      if (can_fuse_adagrad(batch.values)) {
        at::_fused_adagrad_(batch.values, batch.grads, batch.state("sum"), batch.counts, rate,
                            options_.rate_decay, weight_decay, epsilon_of(options_), /*maximize=*/false);
        return;
      }
      for (std::size_t i = 0; i < batch.values.size(); ++i)
        adagrad(batch.values[i], batch.grads[i], state("sum", i), batch.counts[i], rate, weight_decay,
                options_);
      return;
    case OptimizerKind::RmsProp:
      for (std::size_t i = 0; i < batch.values.size(); ++i)
        rms_prop(batch.values[i], batch.grads[i], state("square_avg", i), state("grad_avg", i),
                 state("momentum_buffer", i), rate, weight_decay, options_);
      return;
  }
}

std::vector<Optimizer::State> Optimizer::states() const {
  const auto named = [&](const std::string& kind, const std::vector<at::Tensor>& tensors) {
    State state{kind, {}};
    for (std::size_t i = 0; i < tensors.size(); ++i)
      state.tensors.push_back({parameters_[i].name, tensors[i]});
    return state;
  };
  std::vector<State> all;
  for (const auto& [kind, tensors] : states_) all.push_back(named(kind, tensors));
  if (!counts_.empty()) all.push_back(named(kCount, counts_));
  return all;
}

}  // namespace penstock::train
