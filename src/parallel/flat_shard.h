// The parameters of a unit that have one type and all take a gradient or all take none, laid one after the
// other and cut into as many equal parts as there are ranks. This rank keeps its part; the whole is gathered
// into one storage that is emptied and filled again, so that what autograd saved of it (views of parameters)
// is valid whenever it is full. Of distributed parameters (tensor parallelism) this rank's parts are what is
// laid out and cut; they come back as distributed tensors.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/comm/work.h>
#include <penstock/parallel/sharded.h>

#include <cstdint>
#include <vector>

namespace penstock {

class FlatShard {
 public:
  //! Takes the parameters' values and leaves them empty. They need one type, one device, one need of
  //! gradients.
  FlatShard(const std::vector<NamedTensor>& parameters, const Group& gather, const Group& reduce,
            const ShardOptions& options);

  bool trains() const { return trains_; }
  std::size_t count() const { return entries_.size(); }
  const at::Tensor& parameter(std::size_t entry) const { return entries_[entry].parameter; }
  ShardedParameter shard(std::size_t entry) const;

  // The whole parameters.
  void start_gather();
  void finish_gather();
  //! Waits for a gather that is under way.
  void release();

  // Gradients: collected from the whole parameters, reduced into the shards'.
  //! Moves a parameter's `.grad` into the whole gradient.
  void collect(std::size_t entry);
  //! Whether the parameter has got a gradient since the last reduction.
  bool present(std::size_t entry) const { return entries_[entry].present; }
  void start_reduce();
  //! Waits for it, so that only this rank's part is left in memory; what is reduced over replicas goes on.
  void wait_reduce();
  //! Waits, and adds to the gradients of the shards; `used` says of which (all, if empty).
  void finish_reduce(const std::vector<bool>& used = {});
  void abandon() noexcept;
  //! Others in place of those that failed.
  void set_groups(const Group& gather, const Group& reduce, const std::optional<Group>& replicas);

  //! This rank's part of the parameters, or of their gradients (0 where there is none), with padding.
  at::Tensor whole(bool gradients) const;
  at::Tensor part_of_whole(const at::Tensor& whole, std::size_t entry) const;
  bool has_gradient(std::size_t entry) const { return entries_[entry].installed; }

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter;  //!< the module's own: whole while gathered, else empty
    at::Tensor view;       //!< of the whole; distributed as the parameter is
    std::optional<DTensorForm> form;
    std::vector<std::int64_t> shape;  //!< of the parameter, or of this rank's part of it if it is distributed
    std::int64_t offset, elements;    //!< in the whole
    std::int64_t begin, end;          //!< of the parameter, on this rank
    at::Tensor shard;
    bool present = false;
    bool installed = false;  //!< the last reduction gave it a gradient, on this rank or on others
  };
  std::uint64_t version() const;
  void make_views();
  void empty_parameters();
  void set_storage(bool full);

  Group gather_, reduce_;
  ShardOptions options_;
  std::vector<Entry> entries_;
  std::int64_t part_ = 0;  //!< elements of one rank
  bool trains_;
  at::Tensor shard_;  //!< this rank's part, with padding
  at::Tensor full_;   //!< the whole, in the type of computation; its storage comes and goes
  bool gathered_ = false;
  std::uint64_t gathered_version_ = 0;
  at::Tensor sent_;  //!< of a gather under way
  Work gather_work_;
  bool gathering_ = false;
  at::Tensor grads_;    //!< the whole gradient of this rank, from the first that is collected on
  at::Tensor reduced_;  //!< this rank's part, while it is reduced
  Work reduce_work_, replica_work_;
  bool replicating_ = false;  //!< the part is reduced over the replicas
};

}  // namespace penstock
