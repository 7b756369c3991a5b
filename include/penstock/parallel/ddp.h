// A module together with its Replica. Its forward broadcasts buffers before the call and finds unused
// parameters after it. The counterpart of torch.nn.parallel.DistributedDataParallel.
#pragma once

#include <penstock/parallel/replicate.h>
#include <penstock/value/tensors_in.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace penstock::parallel {

//! Options of DistributedDataParallel.
struct DdpOptions {
  // As in ReplicateOptions.
  std::int64_t bucket_bytes = 25 << 20;
  std::int64_t first_bucket_bytes = 1 << 20;
  std::optional<at::ScalarType> communicate_as{};
  bool broadcast_parameters = true;
  //! Broadcast the buffers of the group's first rank before each forward pass in training mode.
  bool broadcast_buffers = true;
  //! Find unused parameters before the backward pass, so that they do not delay the reduction of others.
  //! Parameters without a gradient are allowed in any case.
  bool find_unused = false;
};

//! Wraps a module so that its gradients are averaged over the group during each backward pass.
template <class Module>
class DistributedDataParallel {
 public:
  DistributedDataParallel(std::shared_ptr<Module> module, const comm::Group& group,
                          const DdpOptions& options = {})
      : module_(std::move(module)),
        options_(options),
        replica_(replicate(module_, group,
                           {.bucket_bytes = options.bucket_bytes,
                            .first_bucket_bytes = options.first_bucket_bytes,
                            .communicate_as = options.communicate_as,
                            .broadcast_parameters = options.broadcast_parameters})) {}
  //! Overload for TORCH_MODULE holders such as `torch::nn::Sequential`.
  template <runtime::ModuleHolder Holder>
  DistributedDataParallel(const Holder& module, const comm::Group& group, const DdpOptions& options = {})
      : DistributedDataParallel(module.ptr(), group, options) {}

  //! Calls the module's forward with the same arguments and returns its result.
  template <class... Args>
  auto forward(Args&&... args) {
    const bool trains = module_->is_training() && replica_.syncs();
    if (trains && options_.broadcast_buffers) replica_.broadcast_buffers();
    auto output = module_->forward(std::forward<Args>(args)...);
    if (trains && options_.find_unused) replica_.find_unused(value::tensors_in(output));
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
  DdpOptions options_;
  Replica replica_;
};

//! Deduction guides: the wrapper is a template over the module's class, for shared pointers and for holders.
template <class Module>
DistributedDataParallel(std::shared_ptr<Module>, comm::Group, DdpOptions = {})
    -> DistributedDataParallel<Module>;
template <runtime::ModuleHolder Holder>
DistributedDataParallel(Holder, comm::Group, DdpOptions = {})
    -> DistributedDataParallel<typename Holder::ContainedType>;

}  // namespace penstock::parallel
