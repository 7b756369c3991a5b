// An independent judge of lowered lists: it really keeps the values of each rank, the messages and the
// shards, and runs the lists step by step, rank after rank, until they end or stand still. It shares no code
// with the library but the actions themselves: no dependency rule, no fact index, no validator. Slow and
// plain on purpose.
#pragma once

#include <penstock/schedule/program.h>

namespace penstock::schedule::testing_support {

//! Whether the lists run to their end with sends of this mode, every value used was there, and nothing was
//! left undone or done twice.
bool runs_to_the_end(const schedule::Draft& draft, schedule::SendMode mode);

//! The same for a compute table, where a value is everywhere as soon as it is computed.
bool runs_to_the_end(const schedule::Schedule& schedule, const schedule::Wiring& wiring);

}  // namespace penstock::schedule::testing_support
