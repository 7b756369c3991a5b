// Ranks as threads of one process, behind the same World and Group handles: for tests, sanitizers and small programs.
#pragma once

#include <penstock/comm/world.h>

#include <exception>
#include <functional>
#include <vector>

namespace penstock {

//! Runs `body` once for each of `ranks` ranks, each on its own thread, and returns each rank's exception (null where
//! it had none). A rank that throws makes the others' pending and next operations raise PeerFailed. Several thread ranks in a
//! process that a launcher started as one of several raise a UsageError: such a program takes its world from init().
std::vector<std::exception_ptr> try_thread_ranks(int ranks, const std::function<void(World&)>& body,
                                                 const InitOptions& options = {});

//! The same, and rethrows the exception that came first: the cause, not the PeerFailed errors that follow from it.
void run_thread_ranks(int ranks, const std::function<void(World&)>& body, const InitOptions& options = {});

}  // namespace penstock
