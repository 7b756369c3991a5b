// The flight recorder: a ring buffer of the last communication operations of a rank. It is always on (well
// under a microsecond per operation) and is dumped as JSON after a failure, to show which rank did not join
// which operation.
#pragma once

#include <penstock/base/ids.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock::comm {

//! One communication operation.
struct FlightRecord {
  std::uint64_t number = 0;  //!< index of the operation on this rank, from 1
  const char* op = "";       //!< `send`, `recv`, `all_reduce`, …
  std::string group;
  //! Index of the collective in its group, from 1; none for sends and receives.
  std::optional<std::uint64_t> sequence{};
  //! Position in the group of the peer or of the root of a collective.
  std::optional<int> peer{};
  int tag = 0;
  std::uint64_t bytes = 0;
  double started = 0;                //!< seconds since the epoch
  std::optional<double> finished{};  //!< none while the operation runs
  bool failed = false;
};

//! The ring buffer of one rank. Thread-safe.
class FlightRecorder {
 public:
  explicit FlightRecorder(Rank rank, std::size_t capacity = 1024);

  std::uint64_t start(FlightRecord record);
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
