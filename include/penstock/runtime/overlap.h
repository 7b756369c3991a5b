// OVERLAP_F_B on two threads of a rank.
#pragma once

#include <penstock/runtime/pipeline.h>

namespace penstock {

//! Runs the two parts of an overlap at once on CPU: the module's forward on a second thread, all else on the
//! rank's own. Without it they run in turn.
//!   options.custom[ActionKind::Overlap] = overlap_on_threads();
//! It pays where a rank leaves cores idle (docs/thread-model.md); modules must bear a forward beside a
//! backward. With data parallelism, and where a part is replaced too, the parts still run in turn.
ActionFunction overlap_on_threads();

}  // namespace penstock
