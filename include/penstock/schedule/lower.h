// Lowering: named passes that turn a compute table into lists with transfers and stage actions. Each pass has
// its own file in src/schedule/passes.
#pragma once

#include <penstock/schedule/program.h>
#include <penstock/schedule/schedule.h>

#include <span>
#include <string_view>
#include <vector>

namespace penstock::schedule {

//! Which passes run, and with which limits.
struct LowerOptions {
  std::vector<StageEdge> skips{};  //!< values that skip stages
  bool merge_backward = false;     //!< merge an I and the W right after it into a B
  bool shard = true;               //!< unshard stages before their use, reshard them afterwards
  int max_active_stages = 3;       //!< maximum number of unsharded stages per rank
  bool reduce_grad = true;         //!< reduce a stage's gradients after its last backward
  bool defer_receives = false;     //!< post receives as late as possible (see the pass)
};

//! A pass rewrites the lists of a draft.
struct Pass {
  std::string_view name;
  std::string_view purpose;
  Draft (*run)(Draft draft, const LowerOptions& options);
};

//! All passes: merge-backward, unshard, reduce-grad, send-recv and defer-receives, in the order in which
//! `lower` runs them, then reorder, which runs only by name.
std::span<const Pass> passes();
//! Runs the pass of that name. Throws a UsageError that lists the names if it is unknown.
Draft run_pass(std::string_view name, Draft draft, const LowerOptions& options = {});

//! Merges each I with the W of the same stage and microbatch right after it into a B.
Draft merge_backward(Draft draft, const LowerOptions& options = {});
//! Before each action, unshards the next `max_active_stages` stages that the rank uses and reshards others.
Draft add_unshard(Draft draft, const LowerOptions& options = {});
//! Inserts a REDUCE_GRAD after the last B or W of each stage.
Draft add_reduce_grad(Draft draft, const LowerOptions& options = {});
//! Inserts the sends and receives of all values that cross ranks. Throws a ScheduleError if the order of the
//! computations makes it impossible to run all of them.
Draft add_send_recv(Draft draft, const LowerOptions& options = {});
//! Moves each receive as late as the use of its value and the transfer order of the pair allow.
Draft defer_receives(Draft draft, const LowerOptions& options = {});
//! Moves transfers (never computations) so that the lists are safe in every send mode.
Draft reorder(Draft draft, const LowerOptions& options = {});

//! Runs send-recv and the passes that the options enable; `reorder` runs only by name. The draft of a valid
//! schedule is safe in every send mode; with deferred receives, only in the buffered and the ordered mode.
Draft lower(const Schedule& schedule, const LowerOptions& options = {});

//! Lowers and validates. Throws a ScheduleError that contains the validator's findings.
Program make_program(const Schedule& schedule, SendMode mode, const LowerOptions& options = {});

}  // namespace penstock::schedule
