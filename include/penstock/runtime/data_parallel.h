// What the executor asks of data parallelism; replicated and sharded implementations come from `parallel`.
// All calls come from the thread of the step, in the order of the rank's program.
#pragma once

#include <penstock/base/ids.h>

namespace penstock {

class DataParallel {
 public:
  virtual ~DataParallel() = default;

  //! UNSHARD: the stage's parameters are needed whole.
  virtual void unshard(StageId stage) = 0;
  //! RESHARD: they are not, for now.
  virtual void reshard(StageId stage) = 0;
  //! Before a backward that adds to the stage's weight gradients (B or W). `last` is that of the step's last
  //! one: before all others gradients must only be accumulated (`no_sync`).
  virtual void before_backward(StageId stage, bool last) = 0;
  //! REDUCE_GRAD: all gradients of this step have been added; reduce them over the replicas.
  virtual void reduce_grad(StageId stage) = 0;
};

}  // namespace penstock
