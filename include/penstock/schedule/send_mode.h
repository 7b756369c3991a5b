// Send modes: when a send completes. Each transport states its mode, a program is proven for one mode, and
// the validator, the simulator and lowering know them all.
//
//   mode     | a send completes       | a pair's transfers match | the rank waits   | transports
//   ---------|------------------------|--------------------------|------------------|-----------------
//   Buffered | immediately            | by tag, in any order     | never            | gloo, threads,
//            |                        |                          |                  | mpi, ucc
//   Ordered  | with its receive       | in program order         | never            | nccl
//   Blocking | when the peer has      | by tag, in any order     | until the send   | none (strictest)
//            | posted the receive     |                          | completes        |
//
// In every mode a receive is posted at its position in the list, and the rank waits for it where the value is
// used. The lists of `lower` are safe in every mode.
//
// To add a send mode:
//   1. add it to the enum, to `send_modes` and to `to_string` (src/schedule/send_mode.cpp);
//   2. define when its transfers deadlock in src/schedule/validate/deadlock.cpp;
//   3. define when its transfers start and end in src/plan/simulate.cpp;
//   4. return it from `send_mode` of the transports that have it (src/comm/transport);
//   5. add a row to the table above and to docs/schedules.md.
// The tests of the validator and the simulator run every entry of `send_modes` next to an independent
// interpreter, which needs the mode too (tests/schedule/interpreter.cpp).
#pragma once

#include <array>
#include <string_view>

namespace penstock::schedule {

//! When a send completes.
enum class SendMode {
  Buffered,  //!< a send completes immediately; transfers are matched by tag
  Ordered,   //!< a pair's transfers run in program order and complete together; computations continue
  Blocking,  //!< a send blocks its rank until the peer has posted the receive
};

inline constexpr std::array send_modes{SendMode::Buffered, SendMode::Ordered, SendMode::Blocking};

std::string_view to_string(SendMode mode);
//! Parses `buffered`, `ordered` or `blocking`. Throws a UsageError that lists the modes.
SendMode parse_send_mode(std::string_view name);

}  // namespace penstock::schedule
