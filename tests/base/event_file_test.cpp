// Event files: framing and checksums against an independent reader, and values as TensorBoard reads them.
#include "base/io/event_file.h"

#include "support/temp_dir.h"
#include "support/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace penstock {
namespace {

//! CRC-32C bit by bit, masked as the TFRecord format says: rotated right by 15 bits, plus a constant.
std::uint32_t slow_masked_crc(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    crc ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

template <class T>
T read_number(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

//! The records of a file. Fails if a length or a checksum is wrong, or if bytes are left over.
std::vector<std::string> records_of(std::string_view file) {
  std::vector<std::string> records;
  while (!file.empty()) {
    EXPECT_GE(file.size(), 16U);
    if (file.size() < 16) break;
    const auto length = read_number<std::uint64_t>(file);
    EXPECT_EQ(read_number<std::uint32_t>(file.substr(8)), slow_masked_crc(file.substr(0, 8)));
    EXPECT_LE(length + 16, file.size());
    if (length + 16 > file.size()) break;
    const std::string_view data = file.substr(12, length);
    EXPECT_EQ(read_number<std::uint32_t>(file.substr(12 + length)), slow_masked_crc(data));
    records.emplace_back(data);
    file.remove_prefix(16 + length);
  }
  return records;
}

TEST(BaseEventFile, MasksChecksumsOfKnownTexts) {
  // The check value of CRC-32C is 0xe3069283 for "123456789".
  const std::uint32_t known = 0xe3069283U;
  EXPECT_EQ(masked_crc32c("123456789"), (known >> 15 | known << 17) + 0xa282ead8U);
  EXPECT_EQ(slow_masked_crc("123456789"), masked_crc32c("123456789"));
}

TEST(BaseEventFile, FramesEveryRecord) {
  const test::TempDir dir;
  EventFile file(dir / "events", 1);
  for (int step = 1; step <= 300; ++step)
    file.write(step, std::array{Scalar("loss", 1.0 / step), Scalar(std::string(200, 'x'), step)});
  const std::string bytes = test::slurp(file.path());
  const std::vector<std::string> records = records_of(bytes);
  ASSERT_EQ(records.size(), 302U);  // the version, the start of the session, and the steps
  EXPECT_THAT(records[0], testing::EndsWith("\x1a\x0d"
                                            "brain.Event:2"));     // field 3, 13 bytes
  EXPECT_THAT(records[1], testing::EndsWith("\x3a\x02\x08\x01"));  // field 7: status START
  // Field 2 of an event is its step: 300 is 0xac 0x02 as a varint.
  EXPECT_THAT(records.back().substr(9), testing::StartsWith("\x10\xac\x02"));
  EXPECT_THAT(file.path().filename().string(), testing::StartsWith("events.out.tfevents."));
}

TEST(BaseEventFile, TensorBoardReadsScalars) {
  const test::TempDir dir;
  EventFile file(dir / "events", 1);
  file.write(1, std::array{Scalar("loss", 2.5), Scalar("peak_memory/rank_0", 3e9)});
  file.write(2, std::array{Scalar("loss", -0.1), Scalar("peak_memory/rank_0", std::pow(2.0, 40))});
  file.write(1'000'000'000'000, std::array{Scalar("loss", 0.0)});
  const auto read = test::read_tensorboard(dir / "events");
  if (!read) GTEST_SKIP() << "PENSTOCK_PYTHON names no Python with tensorboard";
  EXPECT_EQ(*read, nlohmann::json({{"loss", {{1, 2.5}, {2, -0.1F}, {1'000'000'000'000, 0.0}}},
                                   {"peak_memory/rank_0", {{1, 3e9}, {2, std::pow(2.0, 40)}}}}));
}

TEST(BaseEventFile, ResumedRunReplacesLaterSteps) {
  const test::TempDir dir;
  {
    EventFile first(dir / "events", 1);
    for (int step = 1; step <= 5; ++step) first.write(step, std::array{Scalar("loss", step)});
  }
  EventFile second(dir / "events", 4);
  for (int step = 4; step <= 6; ++step) second.write(step, std::array{Scalar("loss", 10.0 * step)});
  const auto read = test::read_tensorboard(dir / "events");
  if (!read) GTEST_SKIP() << "PENSTOCK_PYTHON names no Python with tensorboard";
  EXPECT_EQ(read->at("loss"),
            nlohmann::json({{1, 1.0}, {2, 2.0}, {3, 3.0}, {4, 40.0}, {5, 50.0}, {6, 60.0}}));
}

}  // namespace
}  // namespace penstock
