// An independent check of lowered lists: it tracks the values of each rank, the messages and the shards, and
// runs the lists step by step, rank by rank, until they complete or block. It shares only the actions with
// the library: no dependency rule, no fact index, no validator. It is deliberately slow and simple.
#pragma once

#include <penstock/schedule/program.h>

namespace penstock::schedule::testing_support {

//! Whether the lists complete with sends of this mode, every value was available when used, and nothing was
//! omitted or done twice.
bool runs_to_the_end(const schedule::Draft& draft, schedule::SendMode mode);

//! The same for a compute table, in which a value is available everywhere once it is computed.
bool runs_to_the_end(const schedule::Schedule& schedule, const schedule::Wiring& wiring);

}  // namespace penstock::schedule::testing_support
