// One action of a rank: a computation of a stage on a microbatch, a transfer, or a stage action. Generators
// produce lists of actions; lowering, validation, simulation, drawing and the executor work on them.
#pragma once

#include <penstock/base/ids.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace penstock::schedule {

//! What an action does. The comments show how each kind is written.
enum class ActionKind : std::uint8_t {
  Idle,            //!< an empty slot of a compute table; expresses order, not time
  Forward,         //!< F
  Backward,        //!< B: input and weight gradients together
  BackwardInput,   //!< I
  BackwardWeight,  //!< W
  Overlap,         //!< OVERLAP_F_B: a forward and a backward pass that run concurrently
  SendForward,     //!< SEND_F: sends an output of the stage to a later stage
  RecvForward,     //!< RECV_F: receives an input of the stage from an earlier stage
  SendBackward,    //!< SEND_B: sends the gradient of an input to the stage that produced the input
  RecvBackward,    //!< RECV_B: receives the gradient of an output from the stage that used the output
  Unshard,         //!< UNSHARD: gathers the stage's sharded parameters
  Reshard,         //!< RESHARD: frees the gathered parameters
  ReduceGrad,      //!< REDUCE_GRAD: reduces the stage's gradients over its data-parallel group
};

//! The text of a kind (`F`, `SEND_B`, …); empty for Idle.
std::string_view to_string(ActionKind kind);

//! The largest supported numbers of stages and microbatches.
inline constexpr int kMaxStages = 65'535;
inline constexpr int kMaxMicrobatches = 1'000'000'000;

namespace detail {

[[noreturn]] void throw_bad_stage(StageId stage);
[[noreturn]] void throw_bad_microbatch(MicrobatchId microbatch);

}  // namespace detail

//! A 16-byte value. A default-constructed action is an idle slot. The functions that make an action throw
//! UsageError for a stage outside 0 … kMaxStages-1 or a microbatch outside 0 … kMaxMicrobatches-1.
class Action {
 public:
  constexpr Action() = default;

  static constexpr Action forward(StageId stage, MicrobatchId microbatch) {
    return Action(ActionKind::Forward, stage, microbatch);
  }
  static constexpr Action backward(StageId stage, MicrobatchId microbatch) {
    return Action(ActionKind::Backward, stage, microbatch);
  }
  static constexpr Action backward_input(StageId stage, MicrobatchId microbatch) {
    return Action(ActionKind::BackwardInput, stage, microbatch);
  }
  static constexpr Action backward_weight(StageId stage, MicrobatchId microbatch) {
    return Action(ActionKind::BackwardWeight, stage, microbatch);
  }
  //! `forward` is an F; `backward` is a B or an I.
  static constexpr Action overlap(Action forward, Action backward) {
    Action both(ActionKind::Overlap, forward.stage(), forward.microbatch());
    both.second_kind_ = backward.kind_;
    both.other_stage_ = backward.stage_;
    both.other_microbatch_ = backward.microbatch_;
    return both;
  }
  static constexpr Action send_forward(StageId stage, MicrobatchId microbatch, StageId to) {
    return Action(ActionKind::SendForward, stage, microbatch, to);
  }
  static constexpr Action recv_forward(StageId stage, MicrobatchId microbatch, StageId from) {
    return Action(ActionKind::RecvForward, stage, microbatch, from);
  }
  static constexpr Action send_backward(StageId stage, MicrobatchId microbatch, StageId to) {
    return Action(ActionKind::SendBackward, stage, microbatch, to);
  }
  static constexpr Action recv_backward(StageId stage, MicrobatchId microbatch, StageId from) {
    return Action(ActionKind::RecvBackward, stage, microbatch, from);
  }
  static constexpr Action unshard(StageId stage) {
    return Action(ActionKind::Unshard, stage, MicrobatchId(0));
  }
  static constexpr Action reshard(StageId stage) {
    return Action(ActionKind::Reshard, stage, MicrobatchId(0));
  }
  static constexpr Action reduce_grad(StageId stage) {
    return Action(ActionKind::ReduceGrad, stage, MicrobatchId(0));
  }

  constexpr ActionKind kind() const { return kind_; }
  //! The stage that the action runs on; for an overlap, the stage of its forward pass.
  constexpr StageId stage() const { return StageId(stage_); }
  //! Only for computations and transfers; for an overlap, the microbatch of its forward pass.
  constexpr MicrobatchId microbatch() const { return MicrobatchId(microbatch_); }
  //! Only for transfers: the stage at the other end.
  constexpr StageId peer() const { return StageId(other_stage_); }

  //! Only for overlaps: the forward and the backward pass.
  constexpr Action forward_part() const { return forward(stage(), microbatch()); }
  constexpr Action backward_part() const {
    return Action(second_kind_, StageId(other_stage_), MicrobatchId(other_microbatch_));
  }

  constexpr bool is_idle() const { return kind_ == ActionKind::Idle; }
  constexpr bool is_compute() const { return kind_ >= ActionKind::Forward && kind_ <= ActionKind::Overlap; }
  constexpr bool is_send() const {
    return kind_ == ActionKind::SendForward || kind_ == ActionKind::SendBackward;
  }
  constexpr bool is_recv() const {
    return kind_ == ActionKind::RecvForward || kind_ == ActionKind::RecvBackward;
  }
  constexpr bool is_transfer() const { return is_send() || is_recv(); }

  friend constexpr bool operator==(const Action&, const Action&) = default;

 private:
  constexpr Action(ActionKind kind, StageId stage, MicrobatchId microbatch, StageId peer = StageId(0))
      : kind_(kind), stage_(checked(stage)), other_stage_(checked(peer)), microbatch_(checked(microbatch)) {}

  static constexpr std::uint16_t checked(StageId stage) {
    if (stage.value < 0 || stage.value >= kMaxStages) detail::throw_bad_stage(stage);
    return static_cast<std::uint16_t>(stage.value);
  }
  static constexpr std::uint32_t checked(MicrobatchId microbatch) {
    if (microbatch.value < 0 || microbatch.value >= kMaxMicrobatches)
      detail::throw_bad_microbatch(microbatch);
    return static_cast<std::uint32_t>(microbatch.value);
  }

  ActionKind kind_ = ActionKind::Idle;
  ActionKind second_kind_ = ActionKind::Idle;
  std::uint16_t stage_ = 0;
  std::uint16_t other_stage_ = 0;
  std::uint32_t microbatch_ = 0;
  std::uint32_t other_microbatch_ = 0;
};
static_assert(sizeof(Action) == 16);

//! Calls `visit` on the forward and the backward pass of an overlap, or on any other action itself.
template <class Visit>
constexpr void for_each_part(const Action& action, Visit&& visit) {
  if (action.kind() != ActionKind::Overlap) {
    visit(action);
    return;
  }
  visit(action.forward_part());
  visit(action.backward_part());
}

//! The notation of torch.distributed: `2F0`, `1SEND_B3`, `4UNSHARD`, `(0F4;7B2)OVERLAP_F_B`; empty for an
//! idle slot. A transfer with a stage that is not adjacent names that stage: `1SEND_F3>4`, `4RECV_F3<1`.
std::string to_string(const Action& action);

//! Why a text is not a valid action, and at which column (counted from 1).
struct ActionProblem {
  std::size_t column = 1;
  std::string reason;
};

//! Parses exactly the strings that `to_string` returns for actions other than idle slots. Returns the action,
//! or the problem if the text is not valid.
std::variant<Action, ActionProblem> try_parse_action(std::string_view text);

//! Like `try_parse_action`, but throws a ParseError.
Action parse_action(std::string_view text);

}  // namespace penstock::schedule
