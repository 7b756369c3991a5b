// The checksum of zip records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

//! CRC-32 as zip has it (polynomial 0xEDB88320), about 2 GB a second.
std::uint32_t crc32(std::span<const std::uint8_t> bytes);

}  // namespace penstock
