// The queue of records of a pair of ranks.
#include "comm/shm/ring.h"

#include <new>

namespace penstock::comm::shm {
namespace {

constexpr std::size_t rounded(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

// Zeros are a valid control block, and shared memory starts as zeros.
RingWriter::RingWriter(std::byte* memory, std::size_t capacity)
    : control_(*std::launder(reinterpret_cast<RingControl*>(memory))),
      data_(memory + sizeof(RingControl)),
      capacity_(capacity) {}

bool RingWriter::has_room(std::size_t bytes) {
  if (position_ + bytes - read_ <= capacity_) return true;
  read_ = control_.read.load(std::memory_order_acquire);
  return position_ + bytes - read_ <= capacity_;
}

std::size_t RingWriter::space_of(std::size_t record) const {
  const std::size_t end = capacity_ - position_ % capacity_;
  return record <= end ? record : end + record;
}

Record* RingWriter::reserve(std::size_t payload) {
  const std::size_t bytes = rounded(sizeof(Record) + payload);
  const std::size_t end = capacity_ - position_ % capacity_;
  if (!has_room(space_of(bytes))) return nullptr;
  if (bytes > end) {
    new (data_ + position_ % capacity_) Record{.size = static_cast<std::uint32_t>(end)};
    position_ += end;
  }
  return new (data_ + position_ % capacity_) Record{.size = static_cast<std::uint32_t>(bytes),
                                                    .kind = RecordKind::Data,
                                                    .payload = static_cast<std::uint32_t>(payload)};
}

void RingWriter::publish(const Record& record) {
  position_ += record.size;
  control_.written.store(position_);
}

bool RingWriter::await_room(std::size_t payload) {
  control_.writer_waits.store(1);
  read_ = control_.read.load();
  return !has_room(space_of(rounded(sizeof(Record) + payload)));
}

RingReader::RingReader(std::byte* memory, std::size_t capacity)
    : control_(*std::launder(reinterpret_cast<RingControl*>(memory))),
      data_(memory + sizeof(RingControl)),
      capacity_(capacity) {}

const Record* RingReader::front() {
  for (;;) {
    if (empty()) return nullptr;
    const auto* const record = std::launder(reinterpret_cast<const Record*>(data_ + position_ % capacity_));
    if (record->kind != RecordKind::Skip) return record;
    position_ += record->size;
  }
}

bool RingReader::pop() {
  position_ += std::launder(reinterpret_cast<const Record*>(data_ + position_ % capacity_))->size;
  control_.read.store(position_);
  return control_.writer_waits.load() != 0 && control_.writer_waits.exchange(0) != 0;
}

}  // namespace penstock::comm::shm
