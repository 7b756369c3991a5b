// How each kind of action looks and is called, for every renderer.
#pragma once

#include <penstock/schedule/action.h>

#include <array>
#include <string_view>

namespace penstock {

//! `colour` is the name of a CSS variable and of a class; `ansi` is a colour of the terminal's 256.
struct KindLook {
  std::string_view colour;
  std::string_view meaning;
  std::string_view light;  //!< the colour on white
  std::string_view dark;   //!< and on black
  int ansi;
};

inline const KindLook& look_of(ActionKind kind) {
  static constexpr KindLook forward{"f", "forward", "#3f78c3", "#5a91db", 68};
  static constexpr KindLook backward{"b", "backward", "#3b9a6c", "#4db483", 72};
  static constexpr KindLook input{"i", "backward: inputs", "#2ba3b4", "#3fb6c6", 73};
  static constexpr KindLook weight{"w", "backward: weights", "#e0a03a", "#e5ad50", 179};
  static constexpr KindLook shard{"s", "shard, unshard, reduce", "#8a7cc2", "#a296d8", 140};
  static constexpr KindLook transfer{"c", "transfer", "#b6bfcd", "#59657a", 245};
  switch (kind) {
    case ActionKind::Forward:
      return forward;
    case ActionKind::Backward:
    case ActionKind::Overlap:
      return backward;
    case ActionKind::BackwardInput:
      return input;
    case ActionKind::BackwardWeight:
      return weight;
    case ActionKind::Unshard:
    case ActionKind::Reshard:
    case ActionKind::ReduceGrad:
      return shard;
    case ActionKind::Idle:
    case ActionKind::SendForward:
    case ActionKind::RecvForward:
    case ActionKind::SendBackward:
    case ActionKind::RecvBackward:
      return transfer;
  }
  return transfer;
}

//! Every kind, in the order of the enumeration.
inline constexpr std::array all_kinds = {
    ActionKind::Idle,           ActionKind::Forward,      ActionKind::Backward,    ActionKind::BackwardInput,
    ActionKind::BackwardWeight, ActionKind::Overlap,      ActionKind::SendForward, ActionKind::RecvForward,
    ActionKind::SendBackward,   ActionKind::RecvBackward, ActionKind::Unshard,     ActionKind::Reshard,
    ActionKind::ReduceGrad};

//! Whether the action belongs to a microbatch.
inline bool has_microbatch(const Action& action) {
  return action.is_compute() || action.is_transfer();
}

}  // namespace penstock
