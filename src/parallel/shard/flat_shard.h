// The parameters of a unit with the same type and requires_grad, concatenated and split into one equal shard
// per rank. This rank keeps its shard. The full buffer is gathered into one storage that is freed and filled
// again, so that views of parameters saved by autograd are valid whenever it is filled. With
// ParameterStorage::ShardGradients and ShardOptimizer, and with Copy if there is nothing to convert, the
// storage stays filled, and the shard is a part of it if both have the same type. For distributed parameters
// (tensor parallelism), the local shards are concatenated; the gathered parameters are distributed tensors
// again.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/comm/work.h>
#include <penstock/parallel/sharded.h>

#include <cstdint>
#include <vector>

namespace penstock::parallel {

class FlatShard {
 public:
  //! Takes the values of the parameters and leaves them empty. All must have the same type, device and
  //! requires_grad.
  FlatShard(const std::vector<value::NamedTensor>& parameters, const comm::Group& gather, comm::Group reduce,
            const ShardOptions& options);

  bool trains() const { return trains_; }
  std::size_t count() const { return entries_.size(); }
  const at::Tensor& parameter(std::size_t entry) const { return entries_[entry].parameter; }
  ShardedParameter shard(std::size_t entry) const;

  // Full parameters.
  void start_gather();
  void finish_gather();
  //! Waits for a gather in progress. Frees nothing if all parameters are stored.
  void release();
  //! Gathers stored parameters again before their next use. All ranks must agree on it, so it does not depend
  //! on whether the shard of this rank has changed, which may be empty.
  void outdate();

  // Gradients: accumulated for the full parameters, reduced into those of the shards.
  //! Moves a parameter's `.grad` into the full gradient buffer.
  void collect(std::size_t entry);
  //! Whether the parameter has received a gradient since the last reduction.
  bool present(std::size_t entry) const { return entries_[entry].present; }
  void start_reduce();
  //! Waits for the reduction within the group, after which at most this rank's shard stays in memory, unless
  //! gradients are replicated. The reduction over replicas continues.
  void wait_reduce();
  //! Waits, and accumulates into the gradients of the shards that are `used` (all, if empty).
  void finish_reduce(const std::vector<bool>& used = {});
  void abandon() noexcept;
  //! Replaces the groups after a failure.
  void set_groups(const comm::Group& gather, const comm::Group& reduce,
                  const std::optional<comm::Group>& replicas);

  //! Gathers the full buffer of parameters or gradients (0 if there is none), with padding.
  at::Tensor gather_full(bool gradients) const;
  at::Tensor extract_entry(const at::Tensor& full, std::size_t entry) const;
  bool has_gradient(std::size_t entry) const { return entries_[entry].installed; }

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter;  //!< the module's own: full while gathered, else empty
    at::Tensor view;       //!< into the full buffer; distributed if the parameter is
    std::optional<tensor::DTensorSpec> spec;
    std::vector<std::int64_t> shape;  //!< of the parameter, or of its local shard if it is distributed
    std::int64_t offset, elements;    //!< in the full buffer
    std::int64_t begin, end;          //!< element range of the parameter on this rank
    at::Tensor shard;
    bool present = false;
    bool installed = false;  //!< the last reduction gave it a gradient, on any rank
  };
  bool replicates_gradients() const { return options_.storage == ParameterStorage::ShardOptimizer; }
  std::int64_t first_element() const { return part_ * gather_.rank(); }  //!< of the shard
  std::uint64_t version() const;
  void place_shard(const at::TensorOptions& options);
  at::Tensor shard_of(const Entry& entry) const;
  void make_views();
  void replace_full();
  void empty_parameters();
  void set_storage(bool full);

  comm::Group gather_, reduce_;
  ShardOptions options_;
  std::vector<Entry> entries_;
  std::int64_t part_ = 0;  //!< elements per rank
  bool trains_;
  bool keeps_parameters_ = false;  //!< the full buffer stays filled
  at::ScalarType grad_type_;       //!< in which gradients are accumulated and reduced
  at::Tensor shard_;               //!< this rank's shard, with padding
  at::Tensor full_;  //!< the full buffer, in `compute_as`; its storage may be freed and reallocated
  bool shard_in_full_ = false;  //!< the shard is a part of the full buffer
  bool gathered_ = false;
  std::uint64_t gathered_version_ = 0;
  at::Tensor sent_;  //!< the input of a gather in progress
  comm::Work gather_work_;
  bool gathering_ = false;
  at::Tensor grads_;    //!< full local gradient, allocated when the first gradient is collected
  at::Tensor reduced_;  //!< this rank's shard, or all replicated gradients, during the reduction
  comm::Work reduce_work_, replica_work_;
  bool replicating_ = false;  //!< the reduction over replicas is in progress
};

}  // namespace penstock::parallel
