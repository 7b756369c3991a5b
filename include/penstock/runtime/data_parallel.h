// The interface between the executor and data parallelism; `parallel` implements it for replicated and
// sharded parameters. All calls come from the thread of the step, in the order of the rank's program.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/comm/group.h>

#include <vector>

namespace penstock::runtime {

//! Gathers parameters and reduces gradients for the executor.
class DataParallel {
 public:
  virtual ~DataParallel() = default;

  //! UNSHARD: starts gathering the full parameters of the stage.
  virtual void unshard(StageId stage) = 0;
  //! RESHARD: frees the gathered parameters of the stage.
  virtual void reshard(StageId stage) = 0;
  //! Called before each computation of the stage: waits until `unshard` has completed.
  virtual void before_compute(StageId stage) { (void)stage; }
  //! Called before a backward that accumulates weight gradients of the stage (B or W). `last` is true for the
  //! last one of the step; before all others, gradients must only be accumulated (`no_sync`).
  virtual void before_backward(StageId stage, bool last) = 0;
  //! REDUCE_GRAD: all gradients of this step are accumulated; reduces them over the replicas.
  virtual void reduce_grad(StageId stage) = 0;
  //! Combines the local share of a norm over the parameters that the stages expose: the sum (or the maximum
  //! if `largest`) over the ranks that hold other elements of the same parameters. Tensor-parallel groups are
  //! excluded; see `sharding_groups_of`.
  virtual double combine_norm(double local, bool largest) {
    (void)largest;
    return local;
  }
  //! The tensor-parallel groups whose ranks hold the other elements of `parameter`, if it is a plain tensor
  //! that is the local shard of a distributed one.
  virtual std::vector<comm::Group> sharding_groups_of(const at::Tensor& parameter) const {
    (void)parameter;
    return {};
  }
};

}  // namespace penstock::runtime
