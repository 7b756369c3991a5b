// The byte reader and writer.
#include "base/io/bytes.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <cstring>

namespace penstock {

void ByteWriter::unsigned_int(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) u8(static_cast<std::uint8_t>(value | 0x80));
  u8(static_cast<std::uint8_t>(value));
}

void ByteWriter::signed_int(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  unsigned_int((bits << 1) ^ (value < 0 ? ~std::uint64_t{0} : 0));
}

void ByteWriter::real(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);  // not std::bit_cast, which the library of Emscripten lacks
  for (int shift = 0; shift < 64; shift += 8) u8(static_cast<std::uint8_t>(bits >> shift));
}

void ByteWriter::text(std::string_view value) {
  unsigned_int(value.size());
  raw(value.data(), value.size());
}

void ByteWriter::raw(const void* data, std::size_t size) {
  const auto* begin = static_cast<const std::uint8_t*>(data);
  bytes_.insert(bytes_.end(), begin, begin + size);
}

std::uint8_t ByteReader::u8() {
  return raw(1)[0];
}

std::uint64_t ByteReader::unsigned_int() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const std::uint8_t byte = u8();
    const std::uint64_t bits = byte & 0x7F;
    if (shift == 63 && bits > 1) fail("an integer exceeds 64 bits");
    value |= bits << shift;
    if ((byte & 0x80) == 0) return value;
  }
  fail("an integer is longer than 10 bytes");
}

std::int64_t ByteReader::signed_int() {
  const std::uint64_t bits = unsigned_int();
  return static_cast<std::int64_t>((bits >> 1) ^ ((bits & 1) != 0 ? ~std::uint64_t{0} : 0));
}

double ByteReader::real() {
  const auto bytes = raw(8);
  std::uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  double value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::string ByteReader::text() {
  const auto bytes = raw(unsigned_int());
  return {bytes.begin(), bytes.end()};
}

std::span<const std::uint8_t> ByteReader::raw(std::uint64_t size) {
  if (size > remaining()) {
    fail(str_cat("the message is truncated: expected ", size, " bytes, but only ", remaining(), " are left"));
  }
  const auto bytes = bytes_.subspan(at_, size);
  at_ += size;
  return bytes;
}

std::size_t ByteReader::count(std::size_t item_size) {
  const std::uint64_t number = unsigned_int();
  if (number > remaining() / item_size) fail(str_cat("the message is too short for ", number, " items"));
  return number;
}

void ByteReader::expect_end() {
  if (remaining() != 0) fail(str_cat(remaining(), " extra bytes at the end"));
}

void ByteReader::fail(const std::string& message) const {
  throw ParseError(str_cat("byte ", at_, " of ", bytes_.size(), ": ", message));
}

}  // namespace penstock
