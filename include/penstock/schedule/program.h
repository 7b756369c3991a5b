// From lowered lists to a program that may run. A `Draft` is what the passes work on; a `Program` is a draft
// that the validator has proven for the send mode of the transport it is to run on, and cannot be made in any
// other way.
#pragma once

#include <penstock/schedule/dependencies.h>
#include <penstock/schedule/schedule.h>

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

//! What a transport promises of a send. Receives are posted where they stand and waited for where their value
//! is used.
enum class SendMode {
  Buffered,  //!< a send ends at once, and transfers are matched by tag (Gloo, shared memory)
  Ordered,   //!< a pair's transfers run in each rank's program order and end together; compute goes on (NCCL)
  Blocking,  //!< the rank waits at each send until the other has posted its receive
};

std::string_view send_mode_name(SendMode mode);
//! Reads `buffered`, `ordered` or `blocking`; a UsageError names all three.
SendMode parse_send_mode(std::string_view name);

//! Lists of computations, transfers and chores that nobody has proven yet.
struct Draft {
  std::string name;
  Placement placement;
  Wiring wiring;
  int microbatches = 0;
  std::vector<ActionList> ranks;  //!< one list a rank; idle slots are passed over

  int stages() const { return placement.stages(); }
  Topology topology() const { return {wiring, placement, microbatches, Form::Lowered}; }

  friend bool operator==(const Draft&, const Draft&) = default;
};

//! The schedule as a draft: idle slots dropped, nothing added yet.
Draft to_draft(const Schedule& schedule, std::vector<StageEdge> skips = {});

//! The computations of lowered lists.
Schedule compute_only(const Draft& draft);

//! A proven draft.
class Program {
 public:
  //! A ScheduleError holds every finding of the validator.
  static Program prove(Draft draft, SendMode mode);

  SendMode mode() const { return mode_; }
  const Draft& draft() const { return draft_; }
  const std::string& name() const { return draft_.name; }
  const Placement& placement() const { return draft_.placement; }
  const Wiring& wiring() const { return draft_.wiring; }
  int ranks() const { return draft_.placement.ranks(); }
  int stages() const { return draft_.placement.stages(); }
  int microbatches() const { return draft_.microbatches; }
  bool has_backward() const { return has_backward_; }
  const ActionList& of(Rank rank) const { return draft_.ranks[static_cast<std::size_t>(rank.value)]; }
  //! The most microbatches of a stage whose forward is done and whose backward is not.
  int peak_in_flight(StageId stage) const { return peak_in_flight_[static_cast<std::size_t>(stage.value)]; }

 private:
  Program(Draft draft, SendMode mode, std::vector<int> peak_in_flight);

  Draft draft_;
  SendMode mode_;
  bool has_backward_;
  std::vector<int> peak_in_flight_;
};

}  // namespace penstock
