// The serialization of messages, compared with bytes worked out by hand.
#include "base/io/bytes.h"

#include "support/error_message.h"

#include <penstock/base/error.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using Bytes = std::vector<std::uint8_t>;
using test::error_message;

template <class Write>
Bytes written(const Write& write) {
  ByteWriter writer;
  write(writer);
  return writer.take();
}

Bytes unsigned_int(std::uint64_t value) {
  return written([&](ByteWriter& writer) { writer.unsigned_int(value); });
}

Bytes signed_int(std::int64_t value) {
  return written([&](ByteWriter& writer) { writer.signed_int(value); });
}

constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();

TEST(BaseBytes, WritesVarintsLowestBitsFirst) {
  EXPECT_EQ(unsigned_int(0), (Bytes{0x00}));
  EXPECT_EQ(unsigned_int(1), (Bytes{0x01}));
  EXPECT_EQ(unsigned_int(0x7f), (Bytes{0x7f}));
  EXPECT_EQ(unsigned_int(0x80), (Bytes{0x80, 0x01}));
  EXPECT_EQ(unsigned_int(300), (Bytes{0xac, 0x02}));
  EXPECT_EQ(unsigned_int(0x3fff), (Bytes{0xff, 0x7f}));
  EXPECT_EQ(unsigned_int(0x4000), (Bytes{0x80, 0x80, 0x01}));
  EXPECT_EQ(unsigned_int(kLargest), (Bytes{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}));
}

TEST(BaseBytes, WritesSignedIntegersAsZigzag) {
  EXPECT_EQ(signed_int(0), (Bytes{0x00}));
  EXPECT_EQ(signed_int(-1), (Bytes{0x01}));
  EXPECT_EQ(signed_int(1), (Bytes{0x02}));
  EXPECT_EQ(signed_int(-2), (Bytes{0x03}));
  EXPECT_EQ(signed_int(64), (Bytes{0x80, 0x01}));
  EXPECT_EQ(signed_int(std::numeric_limits<std::int64_t>::max()), unsigned_int(kLargest - 1));
  EXPECT_EQ(signed_int(std::numeric_limits<std::int64_t>::min()), unsigned_int(kLargest));
}

TEST(BaseBytes, WritesRealsAndTextsInLittleEndianOrder) {
  EXPECT_EQ(written([](ByteWriter& writer) { writer.real(1.0); }), (Bytes{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}));
  EXPECT_EQ(written([](ByteWriter& writer) { writer.real(-1.1); }),
            (Bytes{0x9a, 0x99, 0x99, 0x99, 0x99, 0x99, 0xf1, 0xbf}));
  EXPECT_EQ(written([](ByteWriter& writer) { writer.text("ab"); }), (Bytes{2, 'a', 'b'}));
  EXPECT_EQ(written([](ByteWriter& writer) { writer.text(""); }), (Bytes{0}));
  EXPECT_EQ(written([](ByteWriter& writer) { writer.u8(200); }), (Bytes{200}));
}

TEST(BaseBytes, RandomMessagesReadBackUnchanged) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::uint64_t> numbers;
    std::vector<double> reals;
    std::vector<std::string> texts;
    ByteWriter writer;
    for (int i = 0; i < 20; ++i) {
      numbers.push_back(random() >> (random() % 64));
      reals.push_back(std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 100));
      texts.emplace_back(random() % 300, static_cast<char>(random() % 256));
      writer.unsigned_int(numbers.back());
      writer.signed_int(static_cast<std::int64_t>(numbers.back()));
      writer.signed_int(-static_cast<std::int64_t>(numbers.back() >> 1));
      writer.real(reals.back());
      writer.text(texts.back());
      writer.u8(static_cast<std::uint8_t>(numbers.back()));
    }
    const Bytes bytes = writer.take();
    ByteReader reader(bytes);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(reader.unsigned_int(), numbers[i]);
      ASSERT_EQ(reader.signed_int(), static_cast<std::int64_t>(numbers[i]));
      ASSERT_EQ(reader.signed_int(), -static_cast<std::int64_t>(numbers[i] >> 1));
      ASSERT_EQ(reader.real(), reals[i]);
      ASSERT_EQ(reader.text(), texts[i]);
      ASSERT_EQ(reader.u8(), static_cast<std::uint8_t>(numbers[i]));
    }
    reader.expect_end();
  }
}

TEST(BaseBytes, RejectsVarintsThatExceed64Bits) {
  const auto read = [](const Bytes& bytes) {
    return error_message<ParseError>([&] { ByteReader(bytes).unsigned_int(); });
  };
  Bytes bytes(9, 0xff);
  bytes.push_back(0x01);
  EXPECT_EQ(ByteReader(bytes).unsigned_int(), kLargest);
  bytes.back() = 0x02;
  EXPECT_EQ(read(bytes), "byte 10 of 10: an integer exceeds 64 bits");
  bytes.back() = 0x03;
  EXPECT_EQ(read(bytes), "byte 10 of 10: an integer exceeds 64 bits");
  bytes.back() = 0x81;
  EXPECT_EQ(read(bytes), "byte 10 of 10: an integer is longer than 10 bytes");
  bytes.push_back(0x00);
  EXPECT_EQ(read(bytes), "byte 10 of 11: an integer is longer than 10 bytes");
}

TEST(BaseBytes, ReportsTruncationWithPosition) {
  const Bytes bytes = {5, 'a', 'b'};
  EXPECT_EQ(error_message<ParseError>([&] { ByteReader(bytes).text(); }),
            "byte 1 of 3: the message is truncated: expected 5 bytes, but only 2 are left");
  EXPECT_EQ(error_message<ParseError>([&] { ByteReader(bytes).real(); }),
            "byte 0 of 3: the message is truncated: expected 8 bytes, but only 3 are left");
  EXPECT_EQ(ByteReader(bytes).raw(3).size(), 3U);
  EXPECT_EQ(error_message<ParseError>([&] { ByteReader(bytes).raw(4); }),
            "byte 0 of 3: the message is truncated: expected 4 bytes, but only 3 are left");
  EXPECT_EQ(error_message<ParseError>([&] { ByteReader(Bytes{}).u8(); }),
            "byte 0 of 0: the message is truncated: expected 1 bytes, but only 0 are left");
  ByteReader reader(bytes);
  reader.u8();
  EXPECT_EQ(reader.remaining(), 2U);
  EXPECT_EQ(error_message<ParseError>([&] { reader.expect_end(); }), "byte 1 of 3: 2 extra bytes at the end");
  reader.raw(2);
  EXPECT_EQ(error_message([&] { reader.expect_end(); }), "no error");
}

TEST(BaseBytes, CountsAreLimitedByTheRestOfTheMessage) {
  const Bytes three = {3, 0, 0, 0};
  EXPECT_EQ(ByteReader(three).count(), 3U);
  const Bytes four = {4, 0, 0, 0};
  EXPECT_EQ(error_message<ParseError>([&] { ByteReader(four).count(); }),
            "byte 1 of 4: the message is too short for 4 items");
  Bytes pairs = {2, 0, 0, 0};
  EXPECT_EQ(error_message<ParseError>([&] { ByteReader(pairs).count(2); }),
            "byte 1 of 4: the message is too short for 2 items");
  pairs.push_back(0);
  EXPECT_EQ(ByteReader(pairs).count(2), 2U);
  // A product of count and item size would overflow here.
  EXPECT_EQ(
      error_message<ParseError>([&] { ByteReader(unsigned_int(kLargest)).count(std::size_t{1} << 60); }),
      "byte 10 of 10: the message is too short for 18446744073709551615 items");
}

}  // namespace
}  // namespace penstock
