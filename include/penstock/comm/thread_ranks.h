// Runs ranks as threads of one process, with the same World and Group handles. For tests, sanitizers and
// small programs.
#pragma once

#include <penstock/comm/world.h>

#include <exception>
#include <functional>
#include <vector>

namespace penstock::comm {

//! Runs `body` once per rank, each on its own thread, and returns the exception of each rank (null if it
//! threw none). If a rank throws, pending and later operations of the other ranks throw PeerFailed. Throws
//! UsageError for more than one thread rank in a process that a launcher started as one of several: such a
//! program must get its world from init().
std::vector<std::exception_ptr> try_thread_ranks(int ranks, const std::function<void(World&)>& body,
                                                 const InitOptions& options = {});

//! Like try_thread_ranks, but rethrows the first exception: the cause, not the PeerFailed errors that follow
//! from it.
void run_thread_ranks(int ranks, const std::function<void(World&)>& body, const InitOptions& options = {});

}  // namespace penstock::comm
