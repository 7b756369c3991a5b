// Drafts and programs. Passes work on a `Draft`. A `Program` is a draft that the validator accepted for the
// send mode of its transport; only `Program::validated` creates one.
#pragma once

#include <penstock/schedule/schedule.h>
#include <penstock/schedule/send_mode.h>
#include <penstock/schedule/wiring.h>

#include <string>
#include <string_view>
#include <vector>

namespace penstock::schedule {

//! In a compute table a value is available everywhere once it is computed. In lowered lists a value from
//! another rank must be received first.
enum class ProgramLevel { Compute, Lowered };

//! Lists of computations, transfers and stage actions that are not validated yet.
struct Draft {
  std::string name;
  Placement placement;
  Wiring wiring;
  int microbatches = 0;
  std::vector<ActionList> ranks;  //!< one list per rank; idle slots are ignored

  int num_stages() const { return placement.num_stages(); }

  friend bool operator==(const Draft&, const Draft&) = default;
};

//! Converts a schedule to a draft without idle slots. Adds no transfers or stage actions.
Draft to_draft(const Schedule& schedule, std::vector<StageEdge> skips = {});

//! Returns only the computations of a draft.
Schedule compute_only(const Draft& draft);

//! A validated draft.
class Program {
 public:
  //! Validates the draft. Throws a ScheduleError that contains every finding.
  static Program validated(Draft draft, SendMode mode);

  SendMode send_mode() const { return send_mode_; }
  const Draft& draft() const { return draft_; }
  const std::string& name() const { return draft_.name; }
  const Placement& placement() const { return draft_.placement; }
  const Wiring& wiring() const { return draft_.wiring; }
  int ranks() const { return draft_.placement.ranks(); }
  int num_stages() const { return draft_.placement.num_stages(); }
  int microbatches() const { return draft_.microbatches; }
  //! Whether any action is a B, I, W or overlap.
  bool has_backward() const { return has_backward_; }
  //! The list of a rank.
  const ActionList& of(Rank rank) const { return draft_.ranks.at(rank.index()); }
  //! The maximum number of microbatches in flight on a stage.
  int peak_in_flight(StageId stage) const { return peak_in_flight_.at(stage.index()); }

 private:
  Program(Draft draft, SendMode mode, std::vector<int> peak_in_flight);

  Draft draft_;
  SendMode send_mode_;
  bool has_backward_;
  std::vector<int> peak_in_flight_;
};

}  // namespace penstock::schedule
