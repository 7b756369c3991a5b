// Checksums: CRC-32 as zip records have it, and CRC-32C (Castagnoli) of files that are written piece by
// piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

//! CRC-32 as zip has it (polynomial 0xEDB88320), about 2 GB a second.
std::uint32_t crc32(std::span<const std::uint8_t> bytes);

//! CRC-32C (polynomial 0x82F63B78), going on from the checksum of the bytes before.
std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t before = 0);

}  // namespace penstock
