// What the two halves of the serialiser share.
#pragma once

#include <penstock/value/serialize.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

inline constexpr std::uint8_t kMessageVersion =
    0xA1;  // not a small number: an empty or zeroed message is refused

inline void expect_version(ByteReader& in) {
  if (in.u8() != kMessageVersion) in.fail("not a message of this version of penstock");
}

void write_dtype(ByteWriter& out, at::ScalarType dtype);
at::ScalarType read_dtype(ByteReader& in);
void write_sizes(ByteWriter& out, at::IntArrayRef sizes);
std::vector<std::int64_t> read_sizes(ByteReader& in);  //!< none is negative

//! The number of elements; fails where any product of the sizes comes near to overflowing.
std::uint64_t checked_numel(ByteReader& in, const std::vector<std::int64_t>& shape);

}  // namespace penstock
