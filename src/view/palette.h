// The color and the label of each kind of action, for all renderers.
#pragma once

#include <penstock/schedule/action.h>

#include <array>
#include <string_view>

namespace penstock::view {

//! `color` is the name of a CSS variable and class; `ansi` is one of the 256 terminal colors.
struct KindStyle {
  std::string_view color;
  std::string_view meaning;
  std::string_view light;  //!< color in the light theme
  std::string_view dark;   //!< color in the dark theme
  int ansi;
};

inline const KindStyle& style_of(schedule::ActionKind kind) {
  static constexpr KindStyle forward{"f", "forward", "#3f78c3", "#5a91db", 68};
  static constexpr KindStyle backward{"b", "backward", "#3b9a6c", "#4db483", 72};
  static constexpr KindStyle input{"i", "backward: inputs", "#2ba3b4", "#3fb6c6", 73};
  static constexpr KindStyle weight{"w", "backward: weights", "#e0a03a", "#e5ad50", 179};
  static constexpr KindStyle shard{"s", "shard, unshard, reduce", "#8a7cc2", "#a296d8", 140};
  static constexpr KindStyle transfer{"c", "transfer", "#b6bfcd", "#59657a", 245};
  switch (kind) {
    case schedule::ActionKind::Forward:
      return forward;
    case schedule::ActionKind::Backward:
    case schedule::ActionKind::Overlap:
      return backward;
    case schedule::ActionKind::BackwardInput:
      return input;
    case schedule::ActionKind::BackwardWeight:
      return weight;
    case schedule::ActionKind::Unshard:
    case schedule::ActionKind::Reshard:
    case schedule::ActionKind::ReduceGrad:
      return shard;
    case schedule::ActionKind::Idle:
    case schedule::ActionKind::SendForward:
    case schedule::ActionKind::RecvForward:
    case schedule::ActionKind::SendBackward:
    case schedule::ActionKind::RecvBackward:
      return transfer;
  }
  return transfer;
}

//! All kinds in the order of the enum.
inline constexpr std::array kActionKinds = {
    schedule::ActionKind::Idle,           schedule::ActionKind::Forward,
    schedule::ActionKind::Backward,       schedule::ActionKind::BackwardInput,
    schedule::ActionKind::BackwardWeight, schedule::ActionKind::Overlap,
    schedule::ActionKind::SendForward,    schedule::ActionKind::RecvForward,
    schedule::ActionKind::SendBackward,   schedule::ActionKind::RecvBackward,
    schedule::ActionKind::Unshard,        schedule::ActionKind::Reshard,
    schedule::ActionKind::ReduceGrad};

//! Whether the action has a microbatch.
inline bool has_microbatch(const schedule::Action& action) {
  return action.is_compute() || action.is_transfer();
}

}  // namespace penstock::view
