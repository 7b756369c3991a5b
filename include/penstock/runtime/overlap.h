// Runs OVERLAP_F_B on two threads of a rank.
#pragma once

#include <penstock/runtime/pipeline.h>

namespace penstock::runtime {

//! Runs the forward and the backward pass of an overlap concurrently on CPU: the module's forward on a second
//! thread, everything else on the rank thread. By default they run one after the other.
//!   options.execution.custom[ActionKind::Overlap] = overlap_on_threads();
//! This pays off if a rank leaves cores idle (docs/thread-model.md). The module must support a forward pass
//! that runs concurrently with a backward pass. With data parallelism, or if the forward or backward action
//! is replaced too, they still run one after the other. On a device, this function changes nothing: they run
//! on two streams and one thread, unless an action is replaced or a stage has distributed parameters.
ActionFunction overlap_on_threads();

}  // namespace penstock::runtime
