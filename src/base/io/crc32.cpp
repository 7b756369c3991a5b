// Slicing-by-8: table k contains the checksums of each byte value followed by k zero bytes.
#include "base/io/crc32.h"

#include <array>

namespace penstock {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables(std::uint32_t polynomial) {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0U);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kZipTables = make_tables(0xEDB88320U);
constexpr Tables kCastagnoliTables = make_tables(0x82F63B78U);

std::uint32_t checksum(const Tables& tables, std::span<const std::uint8_t> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const std::uint8_t* p = bytes.data() + i;
    const std::uint32_t low =
        crc ^ (static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8 |
               static_cast<std::uint32_t>(p[2]) << 16 | static_cast<std::uint32_t>(p[3]) << 24);
    crc = tables[7][low & 0xff] ^ tables[6][(low >> 8) & 0xff] ^ tables[5][(low >> 16) & 0xff] ^
          tables[4][low >> 24] ^ tables[3][p[4]] ^ tables[2][p[5]] ^ tables[1][p[6]] ^ tables[0][p[7]];
  }
  for (; i < bytes.size(); ++i) crc = (crc >> 8) ^ tables[0][(crc ^ bytes[i]) & 0xff];
  return ~crc;
}

}  // namespace

std::uint32_t crc32(std::span<const std::uint8_t> bytes) {
  return checksum(kZipTables, bytes, 0);
}

std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t before) {
  return checksum(kCastagnoliTables, bytes, before);
}

}  // namespace penstock
