// Sharded data parallelism (ZeRO-3, FSDP): each rank of a group keeps a shard of the parameters, gradients
// and optimizer states of every unit. The parameters of a unit are gathered only while the unit computes.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/runtime/module_call.h>
#include <penstock/runtime/stage_module.h>
#include <penstock/tensor/flatten.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::parallel {

//! Options of sharded data parallelism.
struct ShardOptions {
  //! Free a unit's parameters after its forward pass and gather them again for its backward pass. The last
  //! unit keeps its parameters.
  bool reshard_after_forward = true;
  //! How many units are gathered ahead of the one that computes. 0 needs the least memory; the reduction of a
  //! unit then completes before the next unit's backward starts.
  int prefetch = 1;
  //! Gather and compute in this type (bfloat16 or half). The shards that the optimizer updates keep their own
  //! type.
  std::optional<at::ScalarType> compute_as{};
  //! Convert floating-point tensor arguments of the model, unit or stage to `compute_as`.
  bool cast_inputs = true;
  //! Convert floating-point tensors in the result of the model or stage to this type.
  std::optional<at::ScalarType> output_as{};
  //! Accumulate and reduce gradients in this type. Default: the type in which they are computed.
  std::optional<at::ScalarType> reduce_as{};
  //! Hybrid sharding: the ranks in other sharding groups that hold the same shards. Gradients are also
  //! averaged over them.
  std::optional<comm::Group> replicas{};
  //! Replicated data parallelism with mixed precision: every rank of the group keeps all parameters in their
  //! own type for the optimizer and computes with a copy in `compute_as`. Nothing is gathered.
  bool replicate = false;
  //! Leave the gradient of parameters undefined if no rank used them (one more small message per step).
  //! Otherwise it is 0.
  bool find_unused = false;
  //! Start from the parameters of the group's first rank.
  bool broadcast_parameters = true;
  //! Parameters that are sharded separately. Required for tied parameters of several pipeline stages, which
  //! must be sharded identically.
  std::vector<std::string> separate{};
  //! Pipeline stages only: approximate bytes of parameters that are gathered and reduced together. Gradients
  //! are reduced during the stage's last backward.
  std::int64_t unit_bytes = 25 << 20;
  //! The device on which parameters on the meta device are allocated. They are uninitialized until the caller
  //! fills `shards()`.
  at::Device device = at::kCPU;
};

//! The shard of one parameter on this rank, with all metadata that a checkpoint needs.
struct ShardedParameter {
  std::string name;                 //!< in the complete model
  std::vector<std::int64_t> shape;  //!< for a distributed parameter: shape of its local shard
  std::int64_t begin = 0, end = 0;  //!< range of its elements, in row-major order
  at::Tensor shard;                 //!< these elements as a 1-D tensor: the leaf that the optimizer updates
  std::optional<tensor::DTensorSpec> spec{};  //!< for distributed parameters (tensor parallelism)
};

//! Handle of a sharded model. It owns the shards: the module cannot compute after the handle is destroyed.
class [[nodiscard]] Sharded {
 public:
  struct Impl;

  Sharded(Sharded&&) noexcept;
  Sharded& operator=(Sharded&&) noexcept;
  ~Sharded();

  //! The parameters for an optimizer: non-empty shards of parameters that require a gradient.
  std::vector<at::Tensor> parameters() const;
  //! All parameters in the model's order, including those with an empty shard on this rank.
  std::vector<ShardedParameter> shards() const;

  //! During its lifetime, backward passes accumulate full local gradients without communication.
  class NoSync {
   public:
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend class Sharded;
    explicit NoSync(std::shared_ptr<Impl> impl);

    std::shared_ptr<Impl> impl_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(impl_); }

  //! Scales all gradients so that their total norm is at most `max_norm`, and returns the norm before
  //! scaling. Collective.
  double clip_grad_norm(double max_norm, double norm_type = 2.0);

  //! Full parameters and gradients on every rank, for tests and small models. Collective.
  std::vector<value::NamedTensor> gather_parameters() const;
  std::vector<value::NamedTensor> gather_gradients() const;

  // Manual control, for callers that know when parameters are needed (pipelines).
  //! Gathers the parameters of all units and waits.
  void unshard();
  //! Frees the gathered parameters.
  void reshard();
  //! Reduces the gradients accumulated since the last reduction, and waits.
  void reduce();
  //! Continues with a new group of the same ranks after a failure. Gradients that the failed step accumulated
  //! but did not reduce are dropped.
  void recover(const comm::Group& group, std::optional<comm::Group> replicas = std::nullopt);

 private:
  friend struct Access;
  explicit Sharded(std::shared_ptr<Impl> impl);

  std::shared_ptr<Impl> impl_;
};

//! Shards a torch::nn module over the group. Each of `units` (submodules, in call order) is gathered
//! separately; the remaining parameters are gathered when the module is called. Call the module and its units
//! through `call` (module_call.h): `call(model, x)`, and `call(block, x)` within its forward.
Sharded fully_shard(const std::shared_ptr<torch::nn::Module>& module, const comm::Group& group,
                    ShardOptions options = {},
                    const std::vector<std::shared_ptr<torch::nn::Module>>& units = {});

template <runtime::ModuleHolder Holder>
Sharded fully_shard(const Holder& holder, const comm::Group& group, ShardOptions options = {},
                    const std::vector<std::shared_ptr<torch::nn::Module>>& units = {}) {
  return fully_shard(std::shared_ptr<torch::nn::Module>(holder.ptr()), group, std::move(options), units);
}

//! Shards the module as one unit; the caller controls unshard, reshard and reduce.
Sharded shard_manually(const runtime::StageModule& module, const comm::Group& group,
                       ShardOptions options = {});

}  // namespace penstock::parallel
