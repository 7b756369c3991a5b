// Replicated data parallelism: every rank of a group has the whole model and a part of the batch, and the
// gradients are averaged while the backward still runs. For any libtorch training loop; needs nothing else of
// Penstock.
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

namespace penstock {

struct ReplicateOptions {
  //! How many bytes of gradients travel together. The first bucket is small, so that communication starts
  //! early.
  std::int64_t bucket_bytes = 25 << 20;
  std::int64_t first_bucket_bytes = 1 << 20;
  //! Reduce in this type (bfloat16 or half) and keep the gradients in the parameters' own.
  std::optional<at::ScalarType> communicate_as{};
  //! Whether forwards of DistributedDataParallel begin with the buffers of the group's first rank.
  bool broadcast_buffers = true;
  //! Parameters without a gradient are always allowed. This lets DistributedDataParallel find them before the
  //! backward, so that they do not hold up the communication of others.
  bool find_unused = false;
  //! Whether all start from the parameters and buffers of the group's first rank.
  bool broadcast_parameters = true;
};

class GradReducer;

//! Keeps the gradients of a set of parameters averaged, for as long as it lives. After each backward every
//! `.grad` is the mean over the group; where no rank has one, it stays undefined. Gradients live in the
//! buckets: what one holds of them is written over by the next backward.
class Replica {
 public:
  //! The parameters must agree over the group (names, shapes, types): a UsageError on every rank says what
  //! differs.
  Replica(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers, Group group,
          ReplicateOptions options = {});
  Replica(Replica&&) noexcept;
  Replica& operator=(Replica&&) noexcept;
  ~Replica();

  //! Until it is destroyed, backwards only add to this rank's own gradients.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<GradReducer> reducer);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<GradReducer> reducer_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() const { return NoSync(reducer_); }
  //! Whether backwards are followed by a reduction (outside of `no_sync`).
  bool syncs() const;

  //! Takes the buffers of the group's first rank.
  void broadcast_buffers() const;
  //! Tells, before the backward of these values, which parameters it will not reach.
  void find_unused(const std::vector<at::Tensor>& outputs) const;

  //! The same as `no_sync`, for good.
  void set_sync(bool sync) const;

  // For those who know better than the autograd engine when the last gradient has been added (pipelines).
  //! The next backward adds the last gradients: buckets start as they fill. Ends with `reduce`.
  void begin() const;
  //! Reduces whatever is not yet, and waits.
  void reduce() const;
  //! After a failure and a rebuilt world: goes on with a new group of the same ranks.
  void recover(const Group& group);

  const Group& group() const { return group_; }
  const ReplicateOptions& options() const { return options_; }
  //! The names of the parameters in each bucket, in the order of communication; fixed for good.
  std::vector<std::vector<std::string>> buckets() const;

 private:
  std::shared_ptr<GradReducer> reducer_;
  std::vector<at::Tensor> buffers_;
  Group group_;
  ReplicateOptions options_;
};

//! Of a torch::nn module, by shared_ptr; the module itself does not change.
Replica replicate(const torch::nn::Module& module, const Group& group, ReplicateOptions options = {});
Replica replicate(const StageModule& module, const Group& group, ReplicateOptions options = {});

template <class Module>
requires std::is_base_of_v<torch::nn::Module, Module> Replica replicate(const std::shared_ptr<Module>& module,
                                                                        const Group& group,
                                                                        ReplicateOptions options = {}) {
  return replicate(static_cast<const torch::nn::Module&>(*module), group, std::move(options));
}

//! Of the holders that TORCH_MODULE makes.
template <class Holder>
requires requires(const Holder& holder) {
  holder.ptr()->parameters();
}
Replica replicate(const Holder& holder, const Group& group, ReplicateOptions options = {}) {
  return replicate(holder.ptr(), group, std::move(options));
}

}  // namespace penstock
