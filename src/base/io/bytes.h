// Serialization of messages between ranks. Little-endian; integers are varints. Every read is bounds-checked.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

class ByteWriter {
 public:
  void u8(std::uint8_t value) { bytes_.push_back(value); }
  void unsigned_int(std::uint64_t value);  //!< varint: 7 bits per byte, lowest first
  void signed_int(std::int64_t value);     //!< zigzag varint
  void real(double value);                 //!< 8 bytes, IEEE 754
  void text(std::string_view value);       //!< length, then bytes
  void raw(const void* data, std::size_t size);

  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
};

//! Reads what ByteWriter writes. Never reads out of bounds; throws a ParseError with the position instead.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint8_t u8();
  std::uint64_t unsigned_int();
  std::int64_t signed_int();
  double real();
  std::string text();
  std::span<const std::uint8_t> raw(std::uint64_t size);

  //! Reads the number of items that follow, each of at least `item_size` bytes. Throws if the rest of the
  //! message is too short for them, so a corrupt count never causes a large allocation.
  std::size_t count(std::size_t item_size = 1);

  std::size_t remaining() const { return bytes_.size() - at_; }
  void expect_end();

  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

}  // namespace penstock
