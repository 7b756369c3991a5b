// Gradient buckets of replicated data parallelism. The backward copies gradients into buckets, and full
// buckets are reduced while it runs, always in the same order. After the gradients, each bucket on the CPU
// holds one flag per gradient that says whether this rank has it. Every rank therefore learns which
// parameters are unused without another message. The host must not wait for a device to learn this: the flags
// of buckets on a device are reduced in a message of their own, which only ranks with unused parameters wait
// for.
#pragma once

#include "parallel/replicate/leaf_hooks.h"

#include <penstock/comm/group.h>
#include <penstock/comm/work.h>
#include <penstock/parallel/replicate.h>
#include <penstock/tensor/flatten.h>

#include <memory>
#include <string>
#include <vector>

namespace penstock::parallel {

//! The gradient buckets of a replica.
class Replica::Impl : public std::enable_shared_from_this<Replica::Impl> {
 public:
  //! `parameters`: those that require a gradient, each once.
  Impl(std::vector<value::NamedTensor> parameters, comm::Group group, const ReplicateOptions& options);
  //! Installs the hooks. Not part of the constructor, because they hold a weak pointer to this object.
  void attach();

  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }
  void find_unused(const std::vector<at::Tensor>& outputs);
  //! Starts a reduction that `reduce` completes, instead of the end of the backward.
  void begin_manual();
  void reduce();
  void recover(const comm::Group& group);

  std::vector<std::vector<std::string>> names() const;

 private:
  struct Member {
    std::size_t parameter;
    at::Tensor view;  //!< into `flat`, with the shape of the parameter's local shard
    bool ready = false;
    bool present = false;  //!< this rank has a gradient
  };
  struct Bucket {
    std::vector<Member> members;
    std::int64_t elements = 0;  //!< of gradients; on the CPU, one flag per member follows
    at::Tensor flat;
    at::Tensor sent;  //!< the buffer that is reduced: `flat`, or its copy in `communicate_as`
    comm::Work work;
    std::size_t waiting = 0;
    bool launched = false;
  };
  struct Location {
    std::size_t bucket, member;
  };

  void allocate(Bucket& bucket);
  void begin_reduction();
  void added(std::size_t parameter);
  void mark_ready(std::size_t parameter);
  void collect(Bucket& bucket, std::size_t member);
  void launch_full();
  void launch(Bucket& bucket);
  void finish();
  void install(Bucket& bucket);
  void launch_flags();
  void install_unused();
  void abandon() noexcept;

  std::vector<value::NamedTensor> parameters_;
  std::vector<std::optional<tensor::DTensorSpec>> specs_;  //!< metadata of distributed parameters
  comm::Group group_;
  ReplicateOptions options_;
  bool flags_in_buckets_ = true;  //!< all parameters are on the CPU
  LeafHooks hooks_;
  std::vector<Bucket> buckets_;
  std::vector<Location> locations_;     //!< by parameter
  std::vector<std::size_t> unreached_;  //!< parameters that the next backward is known not to reach
  std::size_t next_ = 0;                //!< next bucket to launch
  at::Tensor flags_;                    //!< by parameter, if buckets have none: whether a rank has a gradient
  comm::Work flags_work_;
  bool sync_ = true;
  bool active_ = false;  //!< a reduction is in progress
  bool manual_ = false;  //!< ... which `reduce` completes, not the end of the backward
  EndOfBackward end_of_backward_;
};

}  // namespace penstock::parallel
