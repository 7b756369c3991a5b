// What the flight recorder keeps of each communication operation. The recorder is always on (well under a
// microsecond per operation). After a failure, it writes its records as JSON to `rank<R>.json` in the
// directory PENSTOCK_FLIGHT_DIR, if that variable is set, to show which rank did not join which operation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

}  // namespace penstock::comm
