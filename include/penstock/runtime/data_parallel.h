// What the executor asks of data parallelism; replicated and sharded implementations come from `parallel`.
// All calls come from the thread of the step, in the order of the rank's program.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/comm/group.h>

#include <vector>

namespace penstock {

class DataParallel {
 public:
  virtual ~DataParallel() = default;

  //! UNSHARD: the stage's parameters are needed whole.
  virtual void unshard(StageId stage) = 0;
  //! RESHARD: they are not, for now.
  virtual void reshard(StageId stage) = 0;
  //! Before each computation of the stage: what `unshard` has begun must be done.
  virtual void before_compute(StageId stage) { (void)stage; }
  //! Before a backward that adds to the stage's weight gradients (B or W). `last` is that of the step's last
  //! one: before all others gradients must only be accumulated (`no_sync`).
  virtual void before_backward(StageId stage, bool last) = 0;
  //! REDUCE_GRAD: all gradients of this step have been added; reduce them over the replicas.
  virtual void reduce_grad(StageId stage) = 0;
  //! A part of a norm over the parameters as stages show them: added up (or the largest taken) over the ranks
  //! that hold other elements of the same parameters.
  //! (Groups of tensor parallelism are not among them; see `spread_of`.)
  virtual double combine_norm(double part, bool largest) {
    (void)largest;
    return part;
  }
  //! The groups of tensor parallelism whose ranks hold other elements of a plain parameter that a stage
  //! shows: a shard of a distributed one.
  virtual std::vector<Group> spread_of(const at::Tensor& parameter) const {
    (void)parameter;
    return {};
  }
};

}  // namespace penstock
