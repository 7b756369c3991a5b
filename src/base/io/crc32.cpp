// Slicing-by-8: table k contains the checksums of each byte value followed by k zero bytes. For CRC-32C, the
// processor's instruction if it has one.
#include "base/io/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

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

#if defined(__x86_64__)

bool has_instruction() {
  return __builtin_cpu_supports("sse4.2") != 0;
}

__attribute__((target("sse4.2"))) std::uint32_t checksum_by_instruction(std::span<const std::uint8_t> bytes,
                                                                        std::uint32_t before) {
  std::uint64_t crc = ~before;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  auto rest = static_cast<std::uint32_t>(crc);
  for (; i < bytes.size(); ++i) rest = _mm_crc32_u8(rest, bytes[i]);
  return ~rest;
}

#elif defined(__aarch64__) && defined(__linux__)

bool has_instruction() {
  constexpr unsigned long crc32_bit = 1UL << 7U;  // HWCAP_CRC32
  return (getauxval(AT_HWCAP) & crc32_bit) != 0;
}

__attribute__((target("+crc"))) std::uint32_t checksum_by_instruction(std::span<const std::uint8_t> bytes,
                                                                      std::uint32_t before) {
  std::uint32_t crc = ~before;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    crc = __crc32cd(crc, word);
  }
  for (; i < bytes.size(); ++i) crc = __crc32cb(crc, bytes[i]);
  return ~crc;
}

#else

bool has_instruction() {
  return false;
}

std::uint32_t checksum_by_instruction(std::span<const std::uint8_t> bytes, std::uint32_t before) {
  return checksum(kCastagnoliTables, bytes, before);
}

#endif

}  // namespace

std::uint32_t crc32(std::span<const std::uint8_t> bytes) {
  return checksum(kZipTables, bytes, 0);
}

std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t before) {
  static const bool fast = has_instruction();
  return fast ? checksum_by_instruction(bytes, before) : crc32c_by_table(bytes, before);
}

std::uint32_t crc32c_by_table(std::span<const std::uint8_t> bytes, std::uint32_t before) {
  return checksum(kCastagnoliTables, bytes, before);
}

}  // namespace penstock
