// The flight recorder: a ring buffer of the last communication operations of a rank.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/comm/flight_record.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace penstock::comm {

//! The ring buffer of one rank. Thread-safe.
class FlightRecorder {
 public:
  explicit FlightRecorder(Rank rank, std::size_t capacity = 1024);

  //! Adds a record that starts now and returns its number. Overwrites the oldest record if the buffer is
  //! full.
  std::uint64_t start(FlightRecord record);
  //! Sets the end of an operation. Does nothing if its record was overwritten.
  void finish(std::uint64_t number, bool failed);

  //! Returns the records in the buffer, oldest first.
  std::vector<FlightRecord> records() const;

  Rank rank() const { return rank_; }
  //! Why the records were dumped; empty before.
  std::string reason() const;

  //! Writes the JSON to `rank<R>.json` in the directory PENSTOCK_FLIGHT_DIR. Does nothing if the variable is
  //! unset, or after the first call.
  void dump(const std::string& reason);

 private:
  Rank rank_;
  mutable std::mutex mutex_;
  std::vector<FlightRecord> ring_;
  std::uint64_t next_ = 1;
  std::string reason_;
  bool dumped_ = false;
};

//! The records as JSON; absent fields are -1 (peer) or 0.
std::string to_json(const FlightRecorder& recorder);

}  // namespace penstock::comm
