// A queue of records from one rank to another, in the shared memory of the receiver. One thread at a time
// writes and one reads; neither takes a lock. Records are contiguous and multiples of 64 bytes: a record that
// does not fit before the end of the buffer starts at the beginning, after a Skip record.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace penstock::comm::shm {

enum class RecordKind : std::uint32_t {
  Skip,    //!< the rest of the buffer is unused
  Data,    //!< a message or a part of one, with its bytes
  Direct,  //!< a message that the receiver reads from the memory of the sender
  Ack,     //!< a Direct message was read
};

//! The start of a record; `payload` bytes follow it.
struct alignas(64) Record {
  std::uint32_t size = 0;  //!< of the record, with this header; a multiple of 64
  RecordKind kind = RecordKind::Skip;
  std::uint64_t channel = 0;  //!< the group
  std::int64_t tag = 0;
  std::uint64_t bytes = 0;    //!< of the message
  std::uint64_t offset = 0;   //!< Data: of the payload in the message
  std::uint64_t address = 0;  //!< Direct: of the message in the memory of the sender
  std::uint64_t number = 0;   //!< Direct and Ack: of the message
  std::uint32_t payload = 0;
};
static_assert(sizeof(Record) == 64);

//! The positions count bytes since the start and never wrap. Accesses are sequentially consistent where one
//! side writes a position and then reads whether the other side waits.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> written{0};
  alignas(64) std::atomic<std::uint64_t> read{0};
  alignas(64) std::atomic<std::uint32_t> writer_waits{0};  //!< the writer wants to know of free space
};

//! Bytes of shared memory that a ring needs. `capacity` must be a multiple of 64.
constexpr std::size_t ring_bytes(std::size_t capacity) {
  return sizeof(RingControl) + capacity;
}

class RingWriter {
 public:
  RingWriter(std::byte* memory, std::size_t capacity);

  //! Returns where a record with this payload is to be written, or null if there is no room. The record has
  //! its size and payload; the reader sees it after `publish`.
  Record* reserve(std::size_t payload);
  void publish(const Record& record);

  //! Asks the reader for a signal when it frees space. Returns false if there is room for the payload now.
  bool await_room(std::size_t payload);

  //! The largest payload of a record.
  std::size_t max_payload() const { return capacity_ / 4; }

 private:
  bool has_room(std::size_t bytes);
  //! Bytes of the buffer that a record takes, with those skipped before it.
  std::size_t space_of(std::size_t record) const;

  RingControl& control_;
  std::byte* data_;
  std::size_t capacity_;
  std::uint64_t position_ = 0;
  std::uint64_t read_ = 0;  // the last known position of the reader
};

class RingReader {
 public:
  RingReader(std::byte* memory, std::size_t capacity);

  //! Returns the next record, or null.
  const Record* front();
  //! Frees the record of `front`. Returns whether the writer waits for space.
  bool pop();
  //! Whether `front` would return a record.
  bool empty() const { return control_.written.load() == position_; }

 private:
  RingControl& control_;
  std::byte* data_;
  std::size_t capacity_;
  std::uint64_t position_ = 0;
};

}  // namespace penstock::comm::shm
