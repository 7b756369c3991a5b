// Strong integer types for stages, microbatches and ranks, so that they cannot be mixed up.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <type_traits>
#include <utility>

namespace penstock {

namespace detail {

[[noreturn]] void throw_id_out_of_range();

}  // namespace detail

//! An integer that compares only with ids of the same type; construction is explicit.
template <class Tag>
struct StrongId {
  std::int32_t value = 0;

  constexpr StrongId() = default;
  //! Throws UsageError if the number does not fit 32 bits.
  template <std::integral Number>
  constexpr explicit StrongId(Number number) : value(static_cast<std::int32_t>(number)) {
    if constexpr (sizeof(Number) >= sizeof value && !std::is_same_v<Number, std::int32_t>) {
      if (!std::in_range<std::int32_t>(number)) detail::throw_id_out_of_range();
    }
  }

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
