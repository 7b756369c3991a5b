// Sharded data parallelism (ZeRO-3, FSDP): each rank of a group keeps one part of every unit's parameters,
// gradients and optimizer states; a unit's parameters are whole only while the unit computes.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/runtime/stage_module.h>
#include <penstock/tensor/flatten.h>
#include <penstock/value/call.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

struct ShardOptions {
  //! Free a unit's parameters after its forward and gather them again for its backward. The last unit keeps
  //! them.
  bool reshard_after_forward = true;
  //! How many units are gathered ahead of the one that computes. 0 takes the least memory: reductions are
  //! then waited for before the next unit's backward begins.
  int prefetch = 1;
  //! Gather and compute in this type (bfloat16 or half); the shards, which the optimizer sees, keep their
  //! own.
  std::optional<at::ScalarType> compute_as{};
  //! Whether the floating-point tensors among the arguments of a call (of the model, a unit, a stage) are
  //! converted to `compute_as`.
  bool cast_inputs = true;
  //! Convert the floating-point tensors of the model's or stage's result to this type.
  std::optional<at::ScalarType> output_as{};
  //! Add up and reduce gradients in this type; else in the one that they are computed in.
  std::optional<at::ScalarType> reduce_as{};
  //! Hybrid: the ranks of other sharding groups that hold the same shards. Gradients are averaged over them
  //! too.
  std::optional<Group> replicas{};
  //! Replicated data parallelism with a compute type: every rank of the group keeps all parameters in their
  //! own type, which the optimizer sees, and computes with a copy in `compute_as`. Nothing is gathered.
  bool replicate = false;
  //! Whether parameters that no rank used keep an undefined gradient (one more small message a step); else it
  //! is 0.
  bool find_unused = false;
  //! Whether all start from the parameters of the group's first rank.
  bool broadcast_parameters = true;
  //! Parameters that are cut for themselves: those that several pipeline stages hold, which must be cut
  //! alike.
  std::vector<std::string> alone{};
  //! Of pipeline stages: about how many bytes of parameters are gathered and reduced at a time. Gradients are
  //! reduced while the stage's last backward goes on.
  std::int64_t unit_bytes = 25 << 20;
  //! Where parameters that are on the meta device get memory. They have no values until `shards()` are
  //! filled.
  at::Device device = at::kCPU;
};

//! What this rank has of one parameter of the model: all that a checkpoint needs.
struct ShardedParameter {
  std::string name;                   //!< in the whole model
  std::vector<std::int64_t> shape;    //!< if it is distributed, of this rank's part of it
  std::int64_t begin = 0, end = 0;    //!< which of its elements, in row-major order
  at::Tensor shard;                   //!< those, one after the other: the leaf that the optimizer sees
  std::optional<DTensorForm> form{};  //!< of a distributed parameter (tensor parallelism)
};

class ShardedUnits;

//! A sharded model. Keeps the state for as long as it lives; afterwards the module has no parameters to
//! compute with.
class Sharded {
 public:
  explicit Sharded(std::shared_ptr<ShardedUnits> units);
  Sharded(Sharded&&) noexcept;
  Sharded& operator=(Sharded&&) noexcept;
  ~Sharded();

  //! What to give to an optimizer: the shards that are not empty, of parameters that take a gradient.
  std::vector<at::Tensor> parameters() const;
  //! Every parameter, also where this rank has nothing of it, in the model's order.
  std::vector<ShardedParameter> shards() const;

  //! Until it is destroyed, backwards add to this rank's own whole gradients, without communication.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<ShardedUnits> units);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<ShardedUnits> units_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() const { return NoSync(units_); }

  //! Scales all gradients so that the norm of the whole is at most `max_norm`; the norm before. For all
  //! ranks.
  double clip_grad_norm(double max_norm, double norm_type = 2.0) const;

  //! Whole parameters and gradients on every rank, for tests and small models; all ranks must call it.
  std::vector<NamedTensor> gather_parameters() const;
  std::vector<NamedTensor> gather_gradients() const;

  // By hand, for those who know when parameters are needed (pipelines).
  void unshard() const;
  void reshard() const;
  //! Reduces what has been added since the last time, and waits.
  void reduce() const;
  //! After a failure and a rebuilt world: goes on with a new group of the same ranks. What the failed step
  //! had added and not reduced is dropped.
  void recover(const Group& group, std::optional<Group> replicas = std::nullopt) const;

  const std::shared_ptr<ShardedUnits>& units() const { return units_; }

 private:
  std::shared_ptr<ShardedUnits> units_;
};

//! Shards a module of torch::nn over the group. Each of `units` (parts of it, in the order of their calls) is
//! gathered for itself, whatever remains when the whole begins. The module and its units must be called
//! through `call` (call.h): `call(model, x)`, and within its forward `call(block, x)`.
Sharded fully_shard(const std::shared_ptr<torch::nn::Module>& module, const Group& group,
                    ShardOptions options = {},
                    const std::vector<std::shared_ptr<torch::nn::Module>>& units = {});

template <class Holder>
requires requires(const Holder& holder) {
  holder.ptr()->parameters();
}
Sharded fully_shard(const Holder& holder, const Group& group, ShardOptions options = {},
                    const std::vector<std::shared_ptr<torch::nn::Module>>& units = {}) {
  return fully_shard(std::shared_ptr<torch::nn::Module>(holder.ptr()), group, std::move(options), units);
}

//! As one unit that is gathered, released and reduced by hand.
Sharded shard_by_hand(const StageModule& module, const Group& group, ShardOptions options = {});

}  // namespace penstock
