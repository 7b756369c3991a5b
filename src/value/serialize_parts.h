// Shared by serialize.cpp and serialize_meta.cpp.
#pragma once

#include "value/serialize.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::value {

inline constexpr std::uint8_t kMessageVersion =
    0xA1;  // nonzero, so that an empty or zeroed message is rejected

inline void expect_version(ByteReader& in) {
  if (in.u8() != kMessageVersion) in.fail("not a message of this version of Penstock");
}

void write_dtype(ByteWriter& out, at::ScalarType dtype);
at::ScalarType read_dtype(ByteReader& in);
void write_sizes(ByteWriter& out, at::IntArrayRef sizes);
std::vector<std::int64_t> read_sizes(ByteReader& in);  //!< fails on negative sizes

//! The number of elements. Fails if any product of the sizes could overflow.
std::uint64_t checked_numel(ByteReader& in, const std::vector<std::int64_t>& shape);

}  // namespace penstock::value
