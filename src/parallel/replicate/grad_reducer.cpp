// Fills buckets from hooks and reduces them in order.
#include "parallel/replicate/grad_reducer.h"

#include "base/text.h"
#include "parallel/replicate/buckets.h"
#include "parallel/tensor/local_parameters.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace penstock::parallel {
namespace {

// A tensor over part of another's memory that is not an autograd view, so that `zero_grad` can detach it.
at::Tensor part_of(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like) {
  // For dense parameters, the gradient has the same strides, so optimizers need one pass over both.
  const bool dense = like.is_non_overlapping_and_dense();
  const std::vector<std::int64_t> strides =
      dense ? like.strides().vec()
            : at::empty(like.sizes(), like.options().device(at::kMeta)).strides().vec();
  return at::empty({0}, flat.options())
      .set_(flat.storage(), flat.storage_offset() + offset, like.sizes(), strides);
}

}  // namespace

Replica::Impl::Impl(std::vector<value::NamedTensor> parameters, comm::Group group,
                    const ReplicateOptions& options)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      options_(options),
      locations_(parameters_.size()) {
  std::vector<at::Tensor> tensors;
  for (const value::NamedTensor& item : parameters_) {
    if (!item.tensor.is_leaf() || !item.tensor.is_floating_point())
      throw UsageError("parameter " + quote(item.name) +
                       " cannot be replicated: it must be a floating-point leaf tensor");
    tensor::FlatDTensor flat = tensor::flatten_dtensor(item.tensor);
    flags_in_buckets_ = flags_in_buckets_ && flat.local.is_cpu();
    tensors.push_back(flat.local);
    specs_.push_back(std::move(flat.spec));
  }
  for (const BucketPlan& plan : plan_buckets(tensors, options.first_bucket_bytes, options.bucket_bytes)) {
    Bucket bucket;
    for (const std::size_t parameter : plan.members) {
      locations_[parameter] = {buckets_.size(), bucket.members.size()};
      bucket.members.push_back({parameter, {}});
      bucket.elements += tensors[parameter].numel();
    }
    buckets_.push_back(std::move(bucket));
  }
}

void Replica::Impl::attach() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.add(parameters_[i].tensor, [weak = weak_from_this(), i] {
      if (const auto self = weak.lock()) self->added(i);
    });
  }
}

void Replica::Impl::allocate(Bucket& bucket) {
  const auto count = static_cast<std::int64_t>(bucket.members.size());
  const at::Tensor& first = parameters_[bucket.members.front().parameter].tensor;
  bucket.flat =
      at::empty({bucket.elements + (flags_in_buckets_ ? count : 0)}, first.options().requires_grad(false));
  std::int64_t offset = 0;
  for (Member& member : bucket.members) {
    const at::Tensor part = tensor::flatten_dtensor(parameters_[member.parameter].tensor).local;
    member.view = part_of(bucket.flat, offset, part);
    offset += part.numel();
  }
}

void Replica::Impl::find_unused(const std::vector<at::Tensor>& outputs) {
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> stack;
  const auto visit = [&](const torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) stack.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad())
      visit(torch::autograd::impl::gradient_edge(output).function.get());
  }
  while (!stack.empty()) {
    const torch::autograd::Node* const node = stack.back();
    stack.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  unreached_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!seen.contains(hooks_.node(i))) unreached_.push_back(i);
  }
}

void Replica::Impl::begin_reduction() {
  active_ = true;
  next_ = 0;
  for (Bucket& bucket : buckets_) {
    if (!bucket.flat.defined()) allocate(bucket);
    bucket.waiting = bucket.members.size();
    bucket.launched = false;
    for (Member& member : bucket.members) member.ready = false;
  }
  for (const std::size_t parameter : std::exchange(unreached_, {})) mark_ready(parameter);
}

void Replica::Impl::begin_manual() {
  if (active_) abandon();
  unreached_.clear();
  manual_ = true;
  begin_reduction();
}

void Replica::Impl::added(std::size_t parameter) {
  if (!manual_ && !sync_) return;
  if (!active_) begin_reduction();
  if (!manual_)
    end_of_backward_.watch(weak_from_this(), [this](bool success) { success ? finish() : abandon(); });
  mark_ready(parameter);
}

void Replica::Impl::mark_ready(std::size_t parameter) {
  const Location location = locations_[parameter];
  Bucket& bucket = buckets_[location.bucket];
  Member& member = bucket.members[location.member];
  if (bucket.launched) {
    throw UsageError(
        "parameter " + quote(parameters_[parameter].name) +
            " received another gradient after its bucket was reduced",
        {.tensor = parameters_[parameter].name},
        "several recomputed modules use it: run the backward under no_sync(), then call reduce()");
  }
  collect(bucket, location.member);
  if (std::exchange(member.ready, true)) return;
  if (--bucket.waiting == 0) launch_full();
}

void Replica::Impl::collect(Bucket& bucket, std::size_t index) {
  const at::NoGradGuard no_grad;
  Member& member = bucket.members[index];
  at::Tensor parameter = parameters_[member.parameter].tensor;
  const at::Tensor grad = local_gradient(parameter, specs_[member.parameter]);
  if (!grad.defined()) {
    member.view.zero_();
  } else if (grad.is_sparse()) {
    throw UsageError("the gradient of " + quote(parameters_[member.parameter].name) + " is sparse", {},
                     "replicated parameters need dense gradients (EmbeddingOptions::sparse(false))");
  } else if (!grad.is_alias_of(member.view)) {
    member.view.copy_(grad);
    parameter.mutable_grad() = with_spec(member.view, specs_[member.parameter]);
  }
  member.present = grad.defined();
}

void Replica::Impl::launch_full() {
  while (next_ < buckets_.size() && buckets_[next_].waiting == 0) launch(buckets_[next_++]);
}

void Replica::Impl::launch(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  bucket.launched = true;
  if (flags_in_buckets_) {
    std::vector<float> present;
    for (const Member& member : bucket.members) present.push_back(member.present ? 1 : 0);
    const auto count = static_cast<std::int64_t>(present.size());
    bucket.flat.narrow(0, bucket.elements, count).copy_(at::from_blob(present.data(), {count}, at::kFloat));
  }
  if (group_.size() == 1) {
    bucket.sent = bucket.flat;
    return;
  }
  bucket.flat.mul_(1.0 / group_.size());  // before the sum, to avoid overflow in half precision
  bucket.sent = options_.communicate_as ? bucket.flat.to(*options_.communicate_as) : bucket.flat;
  bucket.work = group_.iall_reduce(bucket.sent);
}

void Replica::Impl::finish() {
  try {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const Location location = locations_[i];
      if (!buckets_[location.bucket].members[location.member].ready) mark_ready(i);
    }
    if (!flags_in_buckets_) launch_flags();
    for (Bucket& bucket : buckets_) {
      bucket.work.wait();
      install(bucket);
    }
    if (!flags_in_buckets_) install_unused();
  } catch (...) {
    abandon();
    throw;
  }
  active_ = manual_ = false;
  end_of_backward_.reset();
}

void Replica::Impl::install(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  if (!bucket.sent.is_same(bucket.flat)) bucket.flat.copy_(bucket.sent);
  bucket.sent = at::Tensor();
  if (!flags_in_buckets_) return;
  const auto count = static_cast<std::int64_t>(bucket.members.size());
  const at::Tensor used = bucket.flat.narrow(0, bucket.elements, count).to(at::kCPU, at::kFloat).contiguous();
  const auto* const fractions = used.const_data_ptr<float>();
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    if (fractions[i] == 0) continue;  // no rank has a gradient
    const std::size_t number = bucket.members[i].parameter;
    at::Tensor parameter = parameters_[number].tensor;
    if (!parameter.grad().defined())
      parameter.mutable_grad() = with_spec(bucket.members[i].view, specs_[number]);
  }
}

// After all buckets, so that every rank calls the collectives in the same order.
void Replica::Impl::launch_flags() {
  flags_ = at::zeros({static_cast<std::int64_t>(parameters_.size())}, at::kInt);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Location location = locations_[i];
    flags_.mutable_data_ptr<int>()[i] = buckets_[location.bucket].members[location.member].present ? 1 : 0;
  }
  if (group_.size() > 1) flags_work_ = group_.iall_reduce(flags_, comm::ReduceOp::Max);
}

// Parameters without a gradient on this rank get that of the others. A rank that has all gradients does not
// wait.
void Replica::Impl::install_unused() {
  const auto has_gradient = [](const value::NamedTensor& item) { return item.tensor.grad().defined(); };
  if (std::all_of(parameters_.begin(), parameters_.end(), has_gradient)) return flags_work_.detach();
  flags_work_.wait();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor parameter = parameters_[i].tensor;
    if (flags_.const_data_ptr<int>()[i] == 0 || parameter.grad().defined()) continue;
    const Location location = locations_[i];
    parameter.mutable_grad() = with_spec(buckets_[location.bucket].members[location.member].view, specs_[i]);
  }
}

void Replica::Impl::reduce() {
  if (!active_) begin_reduction();
  finish();
}

void Replica::Impl::recover(const comm::Group& group) {
  abandon();
  group_ = group;
}

void Replica::Impl::abandon() noexcept {
  for (Bucket& bucket : buckets_) {
    if (bucket.launched) bucket.flat = at::Tensor();  // the transport may still write to it
    bucket.work.detach();
    bucket.sent = at::Tensor();
  }
  flags_work_.detach();
  active_ = manual_ = false;
  end_of_backward_.reset();
}

std::vector<std::vector<std::string>> Replica::Impl::names() const {
  std::vector<std::vector<std::string>> all;
  for (const Bucket& bucket : buckets_) {
    std::vector<std::string>& names = all.emplace_back();
    for (const Member& member : bucket.members) names.push_back(parameters_[member.parameter].name);
  }
  return all;
}

}  // namespace penstock::parallel
