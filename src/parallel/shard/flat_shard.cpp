// Gathers, frees and reduces one flat buffer.
#include "parallel/shard/flat_shard.h"

#include "base/text.h"
#include "parallel/tensor/local_parameters.h"
#include "value/tensor_storage.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

namespace penstock::parallel {
namespace {

// A tensor over another's memory that is not an autograd view.
at::Tensor over(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef shape) {
  const at::Tensor meta = at::empty(shape, at::TensorOptions(at::kMeta));
  return at::empty({0}, flat.options())
      .set_(flat.storage(), flat.storage_offset() + offset, shape, meta.strides());
}

}  // namespace

FlatShard::FlatShard(const std::vector<value::NamedTensor>& parameters, const comm::Group& gather,
                     comm::Group reduce, const ShardOptions& options)
    : gather_(gather),
      reduce_(std::move(reduce)),
      options_(options),
      trains_(parameters.front().tensor.requires_grad()) {
  const at::NoGradGuard no_grad;
  const std::int64_t ranks = gather.size();
  std::int64_t elements = 0;
  for (const value::NamedTensor& item : parameters) {
    const tensor::FlatDTensor flat = tensor::flatten_dtensor(item.tensor);
    entries_.push_back({.name = item.name,
                        .parameter = item.tensor,
                        .spec = flat.spec,
                        .shape = flat.local.sizes().vec(),
                        .offset = elements,
                        .elements = flat.local.numel()});
    elements += flat.local.numel();
  }
  part_ = (elements + ranks - 1) / ranks;
  const std::int64_t from = first_element(), to = from + part_;
  at::TensorOptions shard_options =
      tensor::flatten_dtensor(parameters.front().tensor).local.options().requires_grad(false);
  if (shard_options.device().is_meta()) shard_options = shard_options.device(options.device);
  const at::ScalarType type = shard_options.dtype().toScalarType();
  full_ = at::empty({part_ * ranks}, shard_options.dtype(options.compute_as.value_or(type)));
  const bool stores_other = options.store_as && trains_ && at::isReducedFloatingType(type);
  if (stores_other) shard_options = shard_options.dtype(*options.store_as);
  grad_type_ = options.reduce_as.value_or(stores_other ? *options.store_as : full_.scalar_type());
  const bool copies = options.storage == ParameterStorage::Copy && full_.dtype() != shard_options.dtype();
  keeps_parameters_ = options.storage != ParameterStorage::Shard && !copies;
  place_shard(shard_options);
  shard_.zero_();
  for (Entry& entry : entries_) {
    entry.begin = std::clamp(from - entry.offset, std::int64_t{0}, entry.elements);
    entry.end = std::clamp(to - entry.offset, entry.begin, entry.elements);
    entry.shard = shard_of(entry);
    if (entry.parameter.is_meta()) {
      if (entry.spec) {
        entry.parameter.set_data(empty_of(full_.options(), entry.spec));
      } else {
        value::TensorStorage::replace(entry.parameter, at::empty({0}, full_.options()));
      }
    } else {
      const at::Tensor value = tensor::flatten_dtensor(entry.parameter).local.contiguous().view({-1});
      if (keeps_parameters_) full_.narrow(0, entry.offset, entry.elements).copy_(value);
      entry.shard.copy_(value.slice(0, entry.begin, entry.end));
    }
    entry.shard.set_requires_grad(trains_);
  }
  make_views();
  // Set the full shape once, because the gradient accumulator that the hooks need records it.
  for (Entry& entry : entries_) entry.parameter.set_data(entry.view);
  gathered_ = !keeps_parameters_;  // the values of other ranks may differ: gather them before the first use
}

// Gathers in place then need no copy of the shard, neither in memory nor in time.
void FlatShard::place_shard(const at::TensorOptions& options) {
  shard_in_full_ = keeps_parameters_ && full_.dtype() == options.dtype();
  shard_ = shard_in_full_ ? over(full_, first_element(), {part_}) : at::empty({part_}, options);
}

at::Tensor FlatShard::shard_of(const Entry& entry) const {
  const std::int64_t elements = entry.end - entry.begin;
  return over(shard_, elements == 0 ? 0 : entry.offset + entry.begin - first_element(), {elements});
}

ShardedParameter FlatShard::shard(std::size_t index) const {
  const Entry& entry = entries_[index];
  return {entry.name, entry.shape, entry.begin, entry.end, entry.shard, entry.spec};
}

void FlatShard::make_views() {
  for (Entry& entry : entries_) entry.view = with_spec(over(full_, entry.offset, entry.shape), entry.spec);
}

// For a transport that may still write to the storage.
void FlatShard::replace_full() {
  full_ = at::empty_like(full_);
  make_views();
  if (!keeps_parameters_) {
    empty_parameters();
    return set_storage(false);
  }
  for (Entry& entry : entries_) entry.parameter.set_data(entry.view);
  if (!shard_in_full_) return;
  const at::Tensor values = shard_;
  place_shard(values.options());
  shard_.copy_(values);
  for (Entry& entry : entries_) entry.shard.set_data(shard_of(entry));
}

void FlatShard::empty_parameters() {
  for (Entry& entry : entries_) entry.parameter.set_data(empty_of(full_.options(), entry.spec));
}

std::uint64_t FlatShard::version() const {
  std::uint64_t sum = 0;
  for (const Entry& entry : entries_) sum += static_cast<std::uint64_t>(entry.shard._version());
  return sum;
}

void FlatShard::set_storage(bool full) {
  const c10::Storage& storage = full_.storage();
  const std::size_t bytes = full ? static_cast<std::size_t>(full_.numel()) * full_.element_size() : 0;
  if (storage.nbytes() == bytes) return;
  const c10::DeviceGuard guard(full_.device());  // allocators use the current device
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
}

void FlatShard::start_gather() {
  if (gathered_ && gathered_version_ != version()) release();  // an optimizer has updated the shards
  if (gathered_ || gathering_) return;
  const at::NoGradGuard no_grad;
  set_storage(true);
  sent_ = shard_.to(full_.scalar_type());
  gathered_version_ = version();
  gathering_ = true;
  if (gather_.size() > 1) {
    gather_work_ = gather_.iall_gather_into(full_, sent_);
  } else if (!shard_in_full_) {
    full_.copy_(sent_);
  }
}

void FlatShard::finish_gather() {
  start_gather();
  if (!gathering_) return;
  gather_work_.wait();
  gathering_ = false;
  gathered_ = true;
  sent_ = at::Tensor();
  for (Entry& entry : entries_) entry.parameter.set_data(entry.view);
}

void FlatShard::release() {
  if (gathering_) finish_gather();
  if (!gathered_ || keeps_parameters_) return;
  gathered_ = false;
  empty_parameters();
  set_storage(false);
}

void FlatShard::outdate() {
  if (!keeps_parameters_) return;  // freed after each use
  if (gathering_) finish_gather();
  gathered_ = false;
}

void FlatShard::collect(std::size_t index) {
  const at::NoGradGuard no_grad;
  Entry& entry = entries_[index];
  const at::Tensor grad = local_gradient(entry.parameter, entry.spec);
  if (!grad.defined()) return;
  if (grad.is_sparse()) {
    throw UsageError("the gradient of " + quote(entry.name) + " is sparse", {},
                     "sharded parameters need dense gradients (EmbeddingOptions::sparse(false))");
  }
  if (!grads_.defined()) {
    grads_ = at::empty_like(full_, full_.options().dtype(grad_type_));
    const std::int64_t used = entries_.back().offset + entries_.back().elements;
    grads_.slice(0, used).zero_();
  }
  const at::Tensor target = over(grads_, entry.offset, entry.shape);
  if (std::exchange(entry.present, true)) {
    target.add_(grad);
  } else {
    target.copy_(grad);
  }
  entry.parameter.mutable_grad() = at::Tensor();
}

void FlatShard::start_reduce() {
  const at::NoGradGuard no_grad;
  if (!grads_.defined()) grads_ = at::zeros_like(full_, full_.options().dtype(grad_type_));
  for (const Entry& entry : entries_) {
    if (!entry.present) grads_.narrow(0, entry.offset, entry.elements).zero_();
  }
  const int all = reduce_.size() * (options_.replicas ? options_.replicas->size() : 1);
  if (all > 1) grads_.mul_(1.0 / all);
  if (reduce_.size() == 1 || replicates_gradients()) {
    reduced_ = std::exchange(grads_, {});
    if (reduce_.size() > 1) reduce_work_ = reduce_.iall_reduce(reduced_);
    return;
  }
  reduced_ = at::empty({part_}, grads_.options());
  reduce_work_ = reduce_.ireduce_scatter_into(reduced_, grads_);
  grads_ = at::Tensor();  // the work holds it
}

void FlatShard::wait_reduce() {
  if (!reduced_.defined() || replicating_) return;
  reduce_work_.wait();
  if (!options_.replicas || options_.replicas->size() == 1) return;
  replica_work_ = options_.replicas->iall_reduce(reduced_);
  replicating_ = true;
}

void FlatShard::finish_reduce(const std::vector<bool>& used) {
  const at::NoGradGuard no_grad;
  wait_reduce();
  if (std::exchange(replicating_, false)) replica_work_.wait();
  const at::Tensor sum = std::exchange(reduced_, {}).to(shard_.scalar_type());
  const std::int64_t from = replicates_gradients() ? 0 : first_element();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    entry.present = false;
    entry.installed = used.empty() || used[i];
    if (!entry.installed || entry.begin == entry.end) continue;
    const at::Tensor part = over(sum, entry.offset + entry.begin - from, {entry.end - entry.begin});
    at::Tensor& grad = entry.shard.mutable_grad();
    if (grad.defined()) {
      grad.add_(part);
    } else {
      grad = part;
    }
  }
  outdate();  // an optimizer may now update the shards, on any rank
}

void FlatShard::abandon() noexcept {
  reduce_work_.detach();
  replica_work_.detach();
  replicating_ = false;
  reduced_ = grads_ = at::Tensor();
  for (Entry& entry : entries_) {
    entry.present = false;
    entry.parameter.mutable_grad() = at::Tensor();
  }
  try {
    release();
  } catch (...) {
    // The gather failed, and the transport may still write to the storage. Abandon it and allocate a new one.
    gathering_ = gathered_ = false;
    sent_ = at::Tensor();
    replace_full();
  }
}

void FlatShard::set_groups(const comm::Group& gather, const comm::Group& reduce,
                           const std::optional<comm::Group>& replicas) {
  gather_ = gather;
  reduce_ = reduce;
  options_.replicas = replicas;
  outdate();
}

at::Tensor FlatShard::gather_full(bool gradients) const {
  const at::NoGradGuard no_grad;
  at::Tensor local_shard = shard_;
  if (gradients) {
    local_shard = at::zeros_like(shard_);
    for (const Entry& entry : entries_) {
      const at::Tensor& grad = entry.shard.grad();
      if (grad.defined() && grad.numel() > 0)
        local_shard.narrow(0, entry.shard.storage_offset() - shard_.storage_offset(), grad.numel())
            .copy_(grad);
    }
  }
  at::Tensor all = at::empty({part_ * gather_.size()}, local_shard.options());
  if (gather_.size() == 1) return all.copy_(local_shard);
  gather_.all_gather_into(all, local_shard);
  return all;
}

at::Tensor FlatShard::extract_entry(const at::Tensor& full, std::size_t index) const {
  const Entry& entry = entries_[index];
  const at::Tensor part = full.narrow(0, entry.offset, entry.elements).view(entry.shape).clone();
  return entry.spec ? tensor::full_tensor(with_spec(part, entry.spec)) : part;
}

}  // namespace penstock::parallel
