// Send modes: when a send completes. Each transport states its mode, and a program is validated for one mode.
// The validator and the simulator know every mode; lowering does not depend on it.
//
//   mode     | a send completes       | a pair's transfers match | the rank waits   | transports
//   ---------|------------------------|--------------------------|------------------|-----------------
//   Buffered | without waiting for    | by tag, in any order     | never            | gloo, threads
//            | its receive            |                          |                  |
//   Ordered  | with its receive       | in program order         | never            | nccl
//   Blocking | with its receive       | by tag, in any order     | until the send   | none (strictest)
//            |                        |                          | completes        |
//
// In every mode a program posts a receive at its position in the list, and the rank waits for it where the
// value is used. In the buffered mode the executor may post a receive earlier. The lists of `lower` are safe
// in every mode; with deferred receives, only in the buffered and the ordered mode.
//
// CONTRIBUTING.md says how to add a send mode.
#pragma once

#include <array>
#include <string_view>

namespace penstock::schedule {

//! When a send completes.
enum class SendMode {
  Buffered,  //!< a send never waits for its receive; transfers are matched by tag
  Ordered,   //!< a pair's transfers run in program order and complete together; computations continue
  Blocking,  //!< a send blocks its rank until the peer has received the message
};

inline constexpr std::array kSendModes{SendMode::Buffered, SendMode::Ordered, SendMode::Blocking};

std::string_view to_string(SendMode mode);
//! Parses a name of `to_string`. Throws a UsageError that lists the modes.
SendMode parse_send_mode(std::string_view name);

}  // namespace penstock::schedule
