// Replica and its construction from a module.
#include "parallel/replica_agreement.h"
#include "parallel/replicate/grad_reducer.h"

#include <penstock/parallel/replicate.h>

#include <torch/nn/module.h>

#include <utility>

namespace penstock::parallel {
namespace {

std::vector<at::Tensor> tensors(const std::vector<value::NamedTensor>& named) {
  std::vector<at::Tensor> all;
  for (const value::NamedTensor& item : named) all.push_back(item.tensor);
  return all;
}

}  // namespace

Replica::Replica(std::vector<value::NamedTensor> parameters, std::vector<value::NamedTensor> buffers,
                 comm::Group group, ReplicateOptions options)
    : group_(std::move(group)), options_(std::move(options)) {
  parameters = each_once(parameters);
  buffers = each_once(buffers);
  check_agreement(group_, parameters, buffers);
  buffers_ = tensors(buffers);
  if (options_.broadcast_parameters) {
    broadcast_values(group_, tensors(parameters));
    broadcast_values(group_, buffers_);
  }
  std::erase_if(parameters, [](const value::NamedTensor& item) { return !item.tensor.requires_grad(); });
  impl_ = std::make_shared<Impl>(std::move(parameters), group_, options_);
  impl_->attach();
}

Replica::Replica(Replica&&) noexcept = default;
Replica& Replica::operator=(Replica&&) noexcept = default;
Replica::~Replica() = default;

Replica::NoSync::NoSync(std::shared_ptr<Impl> replica)
    : replica_(std::move(replica)), before_(replica_->sync()) {
  replica_->set_sync(false);
}
Replica::NoSync::~NoSync() {
  replica_->set_sync(before_);
}

bool Replica::syncs() const {
  return impl_->sync();
}
void Replica::set_sync(bool sync) {
  impl_->set_sync(sync);
}
void Replica::broadcast_buffers() {
  broadcast_values(group_, buffers_);
}
void Replica::find_unused(const std::vector<at::Tensor>& outputs) {
  impl_->find_unused(outputs);
}
void Replica::begin_reduction() {
  impl_->begin_manual();
}
void Replica::reduce() {
  impl_->reduce();
}
void Replica::recover(const comm::Group& group) {
  group_ = group;
  impl_->recover(group);
}
std::vector<std::vector<std::string>> Replica::buckets() const {
  return impl_->names();
}

Replica replicate(const torch::nn::Module& module, const comm::Group& group, ReplicateOptions options) {
  return {listed(module.named_parameters()), listed(module.named_buffers()), group, std::move(options)};
}

Replica replicate(const runtime::StageModule& module, const comm::Group& group, ReplicateOptions options) {
  return {module.parameters(), module.buffers(), group, std::move(options)};
}

}  // namespace penstock::parallel
