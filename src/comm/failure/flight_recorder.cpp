// Records the last operations of a rank and dumps them as JSON.
#include "comm/failure/flight_recorder.h"

#include "base/json.h"
#include "base/text.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace penstock::comm {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

FlightRecorder::FlightRecorder(Rank rank, std::size_t capacity) : rank_(rank), ring_(capacity) {}

std::uint64_t FlightRecorder::start(FlightRecord record) {
  const std::lock_guard lock(mutex_);
  record.number = next_++;
  record.started = now();
  const std::uint64_t number = record.number;
  ring_[number % ring_.size()] = std::move(record);
  return number;
}

void FlightRecorder::finish(std::uint64_t number, bool failed) {
  const std::lock_guard lock(mutex_);
  FlightRecord& record = ring_[number % ring_.size()];
  if (record.number != number) return;  // already overwritten
  record.finished = now();
  record.failed = failed;
}

std::vector<FlightRecord> FlightRecorder::records() const {
  const std::lock_guard lock(mutex_);
  std::vector<FlightRecord> kept;
  const std::uint64_t first = next_ > ring_.size() ? next_ - ring_.size() : 1;
  for (std::uint64_t number = first; number < next_; ++number) kept.push_back(ring_[number % ring_.size()]);
  return kept;
}

std::string FlightRecorder::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::string to_json(const FlightRecorder& recorder) {
  JsonWriter json;
  json.begin_object()
      .field("rank", recorder.rank().value)
      .field("reason", recorder.reason())
      .key("records")
      .begin_array();
  for (const FlightRecord& record : recorder.records()) {
    json.begin_object().field("number", record.number).field("op", record.op).field("group", record.group);
    json.field("sequence", record.sequence.value_or(0))
        .field("peer", record.peer.value_or(-1))
        .field("tag", record.tag);
    json.field("bytes", record.bytes)
        .field("started", record.started)
        .field("finished", record.finished.value_or(0));
    json.field("failed", record.failed).end_object();
  }
  json.end_array().end_object();
  return json.text();
}

void FlightRecorder::dump(const std::string& reason) {
  const char* directory = std::getenv("PENSTOCK_FLIGHT_DIR");
  if (directory == nullptr || *directory == '\0') return;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(dumped_, true)) return;
    reason_ = reason;
  }
  std::ofstream(str_cat(directory, "/rank", rank_.value, ".json")) << to_json(*this) << "\n";
}

}  // namespace penstock::comm
