// Checksums compared with published values and with the bitwise definition.
#include "base/io/crc32.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace penstock {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(std::string_view text) {
  return {text.begin(), text.end()};
}

//! The remainder of the division by the polynomial, one bit at a time.
std::uint32_t by_definition(const Bytes& bytes, std::uint32_t polynomial) {
  std::uint32_t crc = 0xffffffffU;
  for (const std::uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? polynomial : 0U);
  }
  return ~crc;
}

TEST(BaseCrc32c, MatchesPublishedValues) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c(Bytes(32, 0x00)), 0x8a9136aaU);
  EXPECT_EQ(crc32c(Bytes(32, 0xff)), 0x62a8ab43U);
  Bytes rising(32);
  std::iota(rising.begin(), rising.end(), std::uint8_t{0});
  EXPECT_EQ(crc32c(rising), 0x46dd794eU);
  std::reverse(rising.begin(), rising.end());
  EXPECT_EQ(crc32c(rising), 0x113fdb5cU);
  const Bytes read_command = {0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                              0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
                              0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
                              0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  EXPECT_EQ(crc32c(read_command), 0xd9963a56U);
  // The check value from catalogs of checksums.
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283U);
  EXPECT_EQ(crc32c(Bytes{}), 0U);
}

TEST(BaseCrc32, MatchesPublishedValues) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926U);
  EXPECT_EQ(crc32(bytes_of("The quick brown fox jumps over the lazy dog")), 0x414fa339U);
  EXPECT_EQ(crc32(Bytes{}), 0U);
}

TEST(BaseCrc32c, MatchesDefinitionForEveryLengthAndSplit) {
  std::mt19937 random(7);
  for (std::size_t size = 0; size < 70; ++size) {
    Bytes bytes(size);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    EXPECT_EQ(crc32(bytes), by_definition(bytes, 0xedb88320U));
    const std::uint32_t expected = by_definition(bytes, 0x82f63b78U);
    for (std::size_t at = 0; at <= size; ++at) {
      const std::span all(bytes);
      EXPECT_EQ(crc32c(all.subspan(at), crc32c(all.first(at))), expected) << size << " split at " << at;
      EXPECT_EQ(crc32c_by_table(all.subspan(at), crc32c_by_table(all.first(at))), expected);
    }
  }
}

}  // namespace
}  // namespace penstock
