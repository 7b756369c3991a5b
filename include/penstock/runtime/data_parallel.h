// The interface between the executor and data parallelism; `parallel` implements it for replicated and
// sharded parameters. All calls come from the thread of the step, in the order of the rank's program.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/comm/group.h>

#include <vector>

namespace penstock::runtime {

//! Whether a backward pass accumulates the last gradients of a step, which can then be reduced.
enum class GradientSync {
  Accumulate,  //!< only accumulates: more gradients follow (`no_sync`)
  Reduce,      //!< the last backward of the step for this stage
};

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
  //! Called before a backward pass that accumulates weight gradients of the stage (B or W).
  virtual void before_backward(StageId stage, GradientSync sync) = 0;
  //! REDUCE_GRAD: all gradients of this step are accumulated; reduces them over the replicas.
  virtual void reduce_grad(StageId stage) = 0;
  //! Combines the local share of a norm over the parameters that the stages expose: reduces it with
  //! `op` (Sum or Max) over the ranks that hold other elements of the same parameters. Tensor-parallel groups
  //! are excluded; see `sharding_groups_of`.
  virtual double combine_norm(double local, comm::ReduceOp op) {
    (void)op;
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
