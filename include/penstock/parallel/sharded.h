// Sharded data parallelism (ZeRO, FSDP): each rank of a group keeps a shard of the parameters, gradients and
// optimizer states of every unit. The parameters of a unit are gathered only while the unit computes. On
// request, only gradients and optimizer states are sharded, or only the latter.
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

//! What each rank of the group stores. An optimizer always sees `Sharded::parameters()`.
enum class ParameterStorage {
  //! Its shards of parameters, gradients and optimizer states (ZeRO-3).
  Shard,
  //! All parameters, which are gathered again after each reduction of gradients, before their next use, and
  //! its shards of gradients and optimizer states (ZeRO-2).
  ShardGradients,
  //! All parameters, all gradients, which are all-reduced, and its shard of the optimizer states (ZeRO-1).
  ShardOptimizer,
  //! Everything: replicated data parallelism, computed with a copy in `compute_as`.
  Copy,
};

//! Options of `fully_shard`.
struct ShardOptions {
  //! With `Copy`, nothing is gathered and gradients are averaged over the group. Gives replicated data
  //! parallelism a compute type. Cannot be combined with `replicas`.
  ParameterStorage storage = ParameterStorage::Shard;
  //! Gather and compute in this type (bfloat16 or half). The shards that the optimizer updates keep their own
  //! type.
  std::optional<at::ScalarType> compute_as{};
  //! For a module in bfloat16 or half: store the shards of its trained parameters in this type (float), and
  //! gather and compute in that of the module. Other parameters keep their type.
  std::optional<at::ScalarType> store_as{};
  //! Convert floating-point tensor arguments of the model and its units to `compute_as`.
  bool cast_inputs = true;
  //! Convert floating-point tensors in the result of the model to this type.
  std::optional<at::ScalarType> output_as{};
  //! Accumulate and reduce gradients in this type. Default: `store_as` where it applies, else the type in
  //! which they are computed.
  std::optional<at::ScalarType> reduce_as{};
  //! Hybrid sharding: the ranks in other sharding groups that hold the same shards. Gradients are also
  //! averaged over them.
  std::optional<comm::Group> replicas{};
  //! Leave the gradient of parameters undefined if no rank used them (one more small message per step).
  //! Otherwise it is 0.
  bool find_unused = false;
  //! Start from the parameters of the group's first rank.
  bool broadcast_parameters = true;
  //! The device on which parameters on the meta device are allocated. They are uninitialized until the caller
  //! fills `shards()`.
  at::Device device = at::kCPU;
  //! With `Shard`: free a unit's parameters after its forward pass and gather them again for its backward
  //! pass. The last unit keeps its parameters.
  bool reshard_after_forward = true;
  //! How many units are gathered ahead of the one that computes. 0 needs the least memory; the reduction of a
  //! unit then completes before the next unit's backward starts.
  int prefetch = 1;
};

//! Options of `shard_manually` and of ShardedStages (pipeline_data_parallel.h). The options up to `device`
//! are those of ShardOptions, for the stage instead of the model.
struct StageShardOptions {
  ParameterStorage storage = ParameterStorage::Shard;
  std::optional<at::ScalarType> compute_as{};
  std::optional<at::ScalarType> store_as{};
  bool cast_inputs = true;
  std::optional<at::ScalarType> output_as{};
  std::optional<at::ScalarType> reduce_as{};
  std::optional<comm::Group> replicas{};
  bool find_unused = false;
  bool broadcast_parameters = true;
  at::Device device = at::kCPU;
  //! Approximate bytes of parameters that are gathered and reduced together. In a pipeline, a unit is reduced
  //! as soon as the stage's last backward has computed its gradients.
  std::int64_t unit_bytes = 25 << 20;
  //! Parameters that are sharded separately. Required for tied parameters of several stages, which must be
  //! sharded identically.
  std::vector<std::string> separate{};
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
  //! Frees the gathered parameters. If all parameters are stored (ParameterStorage), they are gathered again
  //! before their next use instead; call it on every rank after changing shards in another way than by an
  //! optimizer after a reduction.
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

//! Shards the module in units of about `unit_bytes`: parameters in model order, a new unit when the last one
//! is full. Parameters of one unit are gathered together if they have the same dtype and `requires_grad` and
//! are not listed in `separate`. The caller controls unshard, reshard and reduce.
Sharded shard_manually(const runtime::StageModule& module, const comm::Group& group,
                       const StageShardOptions& options = {});

}  // namespace penstock::parallel
