// Reading and writing of messages between ranks: little-endian, numbers as variable-length integers, every
// read checked against the end of the message.
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
  void unsigned_int(std::uint64_t value);  //!< 7 bits a byte, lowest first
  void signed_int(std::int64_t value);     //!< the same, zigzag
  void real(double value);                 //!< the 8 bytes of its bits
  void text(std::string_view value);       //!< length, then bytes
  void raw(const void* data, std::size_t size);

  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
};

//! The inverse. Whatever the bytes, it reads nothing outside them and throws ParseError with the position
//! instead.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint8_t u8();
  std::uint64_t unsigned_int();
  std::int64_t signed_int();
  double real();
  std::string text();
  std::span<const std::uint8_t> raw(std::uint64_t size);

  //! A number of items to follow, each of at least `item_size` bytes: refused if the message cannot hold
  //! them, so that a damaged count never makes us allocate.
  std::size_t count(std::size_t item_size = 1);

  std::size_t remaining() const { return bytes_.size() - at_; }
  void expect_end();

  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

}  // namespace penstock
