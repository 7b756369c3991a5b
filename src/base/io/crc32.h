// Checksums: CRC-32 for zip records, and incremental CRC-32C (Castagnoli) for files written piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

//! The CRC-32 of zip (polynomial 0xEDB88320), about 2 GB per second.
std::uint32_t crc32(std::span<const std::uint8_t> bytes);

//! CRC-32C (polynomial 0x82F63B78). `before` is the checksum of the preceding bytes. Uses the instruction of
//! x86-64 and ARM processors that have one.
std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t before = 0);
//! The same without that instruction.
std::uint32_t crc32c_by_table(std::span<const std::uint8_t> bytes, std::uint32_t before = 0);

}  // namespace penstock
