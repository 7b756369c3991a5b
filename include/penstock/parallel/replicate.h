// Replicated data parallelism: every rank of a group holds the complete model and processes part of the
// batch. Gradients are averaged while the backward pass runs. Works with any libtorch training loop and needs
// no other part of Penstock.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/runtime/stage_module.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::parallel {

//! Options of replicated data parallelism.
struct ReplicateOptions {
  //! Bytes of gradients per bucket. The first bucket is smaller, so that communication starts early.
  std::int64_t bucket_bytes = 25 << 20;
  std::int64_t first_bucket_bytes = 1 << 20;
  //! Reduce in this type (bfloat16 or half). Gradients keep the type of their parameters.
  std::optional<at::ScalarType> communicate_as{};
  //! Start from the parameters and buffers of the group's first rank.
  bool broadcast_parameters = true;
};

//! Averages the gradients of a set of parameters during its lifetime. After each backward pass, every `.grad`
//! is the mean over the group; it stays undefined if no rank has a gradient. Gradients are views of the
//! buckets: the next backward pass overwrites a gradient tensor that the program keeps.
class [[nodiscard]] Replica {
 public:
  class Impl;

  //! The parameters must agree across the group (names, shapes, types). Otherwise, every rank throws a
  //! UsageError that says what differs.
  Replica(std::vector<value::NamedTensor> parameters, std::vector<value::NamedTensor> buffers,
          comm::Group group, ReplicateOptions options = {});
  Replica(Replica&&) noexcept;
  Replica& operator=(Replica&&) noexcept;
  ~Replica();

  //! During its lifetime, backward passes accumulate local gradients without communication.
  class NoSync {
   public:
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend class Replica;
    explicit NoSync(std::shared_ptr<Impl> replica);

    std::shared_ptr<Impl> replica_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(impl_); }
  //! Whether backward passes reduce gradients; false under `no_sync`.
  bool syncs() const;

  //! Copies the buffers of the group's first rank to all ranks.
  void broadcast_buffers();
  //! Marks the parameters that the backward pass of `outputs` will not reach. Call it before that backward
  //! pass.
  void find_unused(const std::vector<at::Tensor>& outputs);

  //! Like `no_sync`, but without a scope.
  void set_sync(bool sync);

  // Manual control, for callers that know when the last gradient is accumulated (pipelines).
  //! Call it before the backward pass that accumulates the last gradients, with `set_sync(false)`: buckets
  //! are reduced as they fill. Finish with `reduce`. Every rank of the group must call both.
  void begin_reduction();
  //! Reduces the remaining buckets, and waits.
  void reduce();
  //! Continues with a new group of the same ranks after a failure.
  void recover(const comm::Group& group);

  const comm::Group& group() const { return group_; }
  const ReplicateOptions& options() const { return options_; }
  //! The parameter names of each bucket, in the order of communication. The order never changes.
  std::vector<std::vector<std::string>> buckets() const;

 private:
  std::shared_ptr<Impl> impl_;
  std::vector<at::Tensor> buffers_;
  comm::Group group_;
  ReplicateOptions options_;
};

//! Replicates a torch::nn module. The module itself is not changed.
Replica replicate(const torch::nn::Module& module, const comm::Group& group, ReplicateOptions options = {});
Replica replicate(const runtime::StageModule& module, const comm::Group& group,
                  ReplicateOptions options = {});

template <runtime::TorchModule Module>
Replica replicate(const std::shared_ptr<Module>& module, const comm::Group& group,
                  ReplicateOptions options = {}) {
  return replicate(static_cast<const torch::nn::Module&>(*module), group, std::move(options));
}

//! Overload for TORCH_MODULE holders.
template <runtime::ModuleHolder Holder>
Replica replicate(const Holder& holder, const comm::Group& group, ReplicateOptions options = {}) {
  return replicate(holder.ptr(), group, std::move(options));
}

}  // namespace penstock::parallel
