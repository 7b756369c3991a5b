// Writes the protocol buffers of TensorBoard by hand: `Event` and `Summary` need a handful of fields.
#include "base/io/event_file.h"

#include "base/io/crc32.h"
#include "base/io/storage_error.h"
#include "base/text.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace penstock {
namespace {

// Field numbers of the messages, and their wire types.
enum class WireType : std::uint32_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };
constexpr std::uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;  // Event
constexpr std::uint32_t kSummaryValue = 1;                                                          // Summary
constexpr std::uint32_t kTag = 1, kSimpleValue = 2;                                                 // Value
constexpr std::uint32_t kStatus = 1, kStatusStart = 1;  // SessionLog

template <class T>
void append_little_endian(std::string& text, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
}

template <class Bits, class T>
void append_real(std::string& text, T number) {
  Bits bits = 0;
  static_assert(sizeof bits == sizeof number);
  std::memcpy(&bits, &number, sizeof bits);  // not std::bit_cast, which the library of Emscripten lacks
  append_little_endian(text, bits);
}

void append_varint(std::string& text, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) text += static_cast<char>((value & 0x7f) | 0x80);
  text += static_cast<char>(value);
}

void append_key(std::string& text, std::uint32_t field, WireType type) {
  append_varint(text, field << 3 | static_cast<std::uint32_t>(type));
}

void append_bytes(std::string& text, std::uint32_t field, std::string_view bytes) {
  append_key(text, field, WireType::Bytes);
  append_varint(text, bytes.size());
  text += bytes;
}

//! The beginning of every event: the time of day and the step.
std::string new_event(std::int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  append_key(event, kWallTime, WireType::Fixed64);
  append_real<std::uint64_t>(event, std::chrono::duration<double>(now).count());
  append_key(event, kStep, WireType::Varint);
  append_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

//! TensorBoard reads the files of a directory in the order of their names, so these start with the time.
std::string new_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '-';
  return formatted("events.out.tfevents.%010lld.%06lld.%s.%d", static_cast<long long>(micros / 1'000'000),
                   static_cast<long long>(micros % 1'000'000), host.data(), static_cast<int>(getpid()));
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  constexpr std::uint32_t mask = 0xa282ead8U;
  const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return std::rotr(crc32c({data, bytes.size()}), 15) + mask;
}

std::string tf_record(std::string_view data) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(data.size()));
  append_little_endian(record, masked_crc32c(record));
  record += data;
  append_little_endian(record, masked_crc32c(data));
  return record;
}

EventFile::EventFile(const std::filesystem::path& directory, std::int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw_storage_error("create the directory", directory, error.value());
  path_ = directory / new_name();
  file_.open(path_, std::ios::binary);
  std::string version = new_event(first_step);
  append_bytes(version, kFileVersion, "brain.Event:2");
  append(version);
  // The start of a session: a reader drops the values of this and later steps that it has read before.
  std::string status;
  append_key(status, kStatus, WireType::Varint);
  append_varint(status, kStatusStart);
  std::string start = new_event(first_step);
  append_bytes(start, kSessionLog, status);
  append(start);
}

void EventFile::write(std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const auto& [name, number] : scalars) {
    std::string value;
    append_bytes(value, kTag, name);
    append_key(value, kSimpleValue, WireType::Fixed32);
    append_real<std::uint32_t>(value, static_cast<float>(number));
    append_bytes(summary, kSummaryValue, value);
  }
  std::string event = new_event(step);
  append_bytes(event, kSummary, summary);
  append(event);
}

void EventFile::append(const std::string& event) {
  file_ << tf_record(event) << std::flush;
  if (!file_) throw_storage_error("write", path_, errno);
}

}  // namespace penstock
