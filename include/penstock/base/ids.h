// Strong integer types for stages, microbatches and ranks, so that they cannot be mixed up.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>

namespace penstock {

//! An integer that compares only with ids of the same type; construction is explicit.
template <class Tag>
struct StrongId {
  std::int32_t value = 0;

  constexpr StrongId() = default;
  constexpr explicit StrongId(std::int64_t v) : value(static_cast<std::int32_t>(v)) {}

  //! The value as an index of a container.
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << id.value; }
};

using StageId = StrongId<struct StageTag>;
using MicrobatchId = StrongId<struct MicrobatchTag>;
using Rank = StrongId<struct RankTag>;

}  // namespace penstock

template <class Tag>
struct std::hash<penstock::StrongId<Tag>> {
  std::size_t operator()(penstock::StrongId<Tag> id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
