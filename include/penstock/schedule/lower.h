// Lowering: passes that turn a compute table into lists with transfers and chores. Each pass is a file and
// has a name.
#pragma once

#include <penstock/schedule/program.h>
#include <penstock/schedule/schedule.h>

#include <span>
#include <string_view>
#include <vector>

namespace penstock {

struct LowerOptions {
  std::vector<StageEdge> skips;  //!< values that skip stages
  bool merge_backward = false;   //!< an I with its W right after it becomes a B
  bool shard = true;             //!< unshard stages ahead of their use, reshard them after
  int max_active_stages = 3;     //!< how many stages of a rank are unsharded at a time
  bool reduce_grad = true;       //!< reduce a stage's gradients after its last backward
  bool defer_receives = false;   //!< receive as late as the use and the pair's order allow
};

//! A pass rewrites the lists of a draft.
struct Pass {
  std::string_view name;
  std::string_view purpose;
  Draft (*run)(Draft draft, const LowerOptions& options);
};

//! merge-backward, unshard, reduce-grad, send-recv, defer-receives, reorder: in the order in which lowering
//! runs them.
std::span<const Pass> passes();
//! By its name; a UsageError lists the names.
Draft run_pass(std::string_view name, Draft draft, const LowerOptions& options = {});

Draft merge_backward(Draft draft, const LowerOptions& options = {});
Draft add_unshard(Draft draft, const LowerOptions& options = {});
Draft add_reduce_grad(Draft draft, const LowerOptions& options = {});
//! A ScheduleError if the computations can never all run.
Draft add_send_recv(Draft draft, const LowerOptions& options = {});
Draft defer_receives(Draft draft, const LowerOptions& options = {});
//! Moves the transfers (never the computations) so that the lists are safe in every send mode.
Draft reorder(Draft draft, const LowerOptions& options = {});

//! All passes that the options ask for. What it makes of a valid schedule is safe in every send mode, or with
//! deferred receives in the buffered and the ordered one.
Draft lower(const Schedule& schedule, const LowerOptions& options = {});

//! Lowers and proves; a ScheduleError holds the validator's findings.
Program make_program(const Schedule& schedule, SendMode mode, const LowerOptions& options = {});

}  // namespace penstock
