// A module together with its Replica. Its forward broadcasts buffers before the call and finds unused
// parameters after it. The counterpart of torch.nn.parallel.DistributedDataParallel.
#pragma once

#include <penstock/parallel/replicate.h>
#include <penstock/value/tensors_in.h>

#include <memory>
#include <utility>

namespace penstock::parallel {

//! Wraps a module so that its gradients are averaged over the group during each backward pass.
template <class Module>
class DistributedDataParallel {
 public:
  DistributedDataParallel(std::shared_ptr<Module> module, const comm::Group& group,
                          ReplicateOptions options = {})
      : module_(std::move(module)), replica_(replicate(module_, group, std::move(options))) {}
  //! Overload for TORCH_MODULE holders such as `torch::nn::Sequential`.
  template <runtime::ModuleHolder Holder>
  DistributedDataParallel(const Holder& module, const comm::Group& group, ReplicateOptions options = {})
      : DistributedDataParallel(module.ptr(), group, std::move(options)) {}

  //! Calls the module's forward with the same arguments and returns its result.
  template <class... Args>
  auto forward(Args&&... args) {
    const bool trains = module_->is_training() && replica_.syncs();
    if (trains && replica_.options().broadcast_buffers) replica_.broadcast_buffers();
    auto output = module_->forward(std::forward<Args>(args)...);
    if (trains && replica_.options().find_unused) replica_.find_unused(value::tensors_in(output));
    return output;
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  //! During the lifetime of the result, backward passes accumulate local gradients without communication.
  [[nodiscard]] Replica::NoSync no_sync() { return replica_.no_sync(); }
  //! The wrapped module.
  const std::shared_ptr<Module>& module() const { return module_; }
  Module* operator->() { return module_.get(); }
  const Module* operator->() const { return module_.get(); }
  Replica& replica() { return replica_; }
  const Replica& replica() const { return replica_; }

 private:
  std::shared_ptr<Module> module_;
  Replica replica_;
};

//! Deduction guides: the wrapper is a template over the module's class, for shared pointers and for holders.
template <class Module>
DistributedDataParallel(std::shared_ptr<Module>, comm::Group, ReplicateOptions = {})
    -> DistributedDataParallel<Module>;
template <runtime::ModuleHolder Holder>
DistributedDataParallel(Holder, comm::Group, ReplicateOptions = {})
    -> DistributedDataParallel<typename Holder::ContainedType>;

}  // namespace penstock::parallel
