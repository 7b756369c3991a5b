// The flight recorder: a ring of the last operations of a rank, kept always (it costs well under a microsecond an
// operation), dumped as JSON when something fails, so that one can see which rank did not join which operation.
#pragma once

#include <penstock/base/ids.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace penstock {

struct FlightRecord {
  std::uint64_t number = 0;      //!< counts this rank's operations from 1
  const char* op = "";           //!< `send`, `recv`, `all_reduce`, …
  std::string group;
  std::uint64_t sequence = 0;    //!< counts the group's collectives from 1; 0 for sends and receives
  int peer = -1;                 //!< the peer's rank in the group, or a collective's root; -1 for none
  int tag = 0;
  std::uint64_t bytes = 0;
  double started = 0;            //!< seconds since the epoch
  double finished = 0;           //!< 0 while under way
  bool failed = false;
};

class FlightRecorder {
 public:
  explicit FlightRecorder(Rank rank, std::size_t capacity = 1024);

  std::uint64_t start(FlightRecord record);
  void finish(std::uint64_t number, bool failed);

  //! The kept records, oldest first.
  std::vector<FlightRecord> records() const;
  std::string to_json() const;

  //! Writes the JSON to `rank<R>.json` in the directory that PENSTOCK_FLIGHT_DIR names, once; nothing if it is unset.
  void dump(const std::string& reason);

 private:
  Rank rank_;
  mutable std::mutex mutex_;
  std::vector<FlightRecord> ring_;
  std::uint64_t next_ = 1;
  std::string reason_;
  bool dumped_ = false;
};

//! What a set of dumps (their JSON texts, with the ranks that gave none listed) says: which rank did not join which
//! collective, and which receives wait for a send that never came. One line for each finding.
std::vector<std::string> explain_flight(const std::vector<std::string>& dumps, const std::vector<Rank>& silent);

}  // namespace penstock
