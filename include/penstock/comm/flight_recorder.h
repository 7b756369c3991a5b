// The flight recorder: a ring buffer of the last communication operations of a rank. It is always on (well
// under a microsecond per operation) and is dumped as JSON after a failure, to show which rank did not join
// which operation.
#pragma once

#include <penstock/base/ids.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace penstock::comm {

struct FlightRecord {
  std::uint64_t number = 0;  //!< index of the operation on this rank, from 1
  const char* op = "";       //!< `send`, `recv`, `all_reduce`, …
  std::string group;
  std::uint64_t sequence = 0;  //!< index of the collective in its group, from 1; 0 for sends and receives
  int peer = -1;               //!< group rank of the peer or of the root of a collective; -1 if none
  int tag = 0;
  std::uint64_t bytes = 0;
  double started = 0;   //!< seconds since the epoch
  double finished = 0;  //!< 0 while the operation runs
  bool failed = false;
};

class FlightRecorder {
 public:
  explicit FlightRecorder(Rank rank, std::size_t capacity = 1024);

  std::uint64_t start(FlightRecord record);
  void finish(std::uint64_t number, bool failed);

  //! Returns the records in the buffer, oldest first.
  std::vector<FlightRecord> records() const;
  std::string to_json() const;

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

//! Analyzes the JSON dumps of several ranks: which rank did not join which collective, and which sends and
//! receives did not complete. `silent` lists the ranks without a dump. Returns one line per finding.
std::vector<std::string> explain_flight(const std::vector<std::string>& dumps,
                                        const std::vector<Rank>& silent);

}  // namespace penstock::comm
