// Over an ordered transport, a rank waits at a receive for the metadata of the message if it is not known
// yet, so that the transfers of a pair of ranks run in the order of the program. The validator proves that a
// program ends if receives are waited for where their values are used, which may be later.
#pragma once

#include <penstock/schedule/program.h>

namespace penstock::runtime {

//! Throws ScheduleError if an ordered program could deadlock when each receive waits for its send to start.
void check_waits_at_receives(const schedule::Program& program);

}  // namespace penstock::runtime
