// A stream of a device next to that of the rank.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <optional>

namespace penstock::runtime {

inline c10::Stream current_stream_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

//! Lets `waiting` wait for the work that `done` has been given so far.
inline void wait_for_stream(const c10::Stream& waiting, const c10::Stream& done) {
  c10::Event event(done.device_type());
  event.record(done);
  event.block(waiting);
}

//! On destruction, lets the current stream wait for the side stream, if there is one: also if an exception
//! frees memory that work on the side stream uses.
class StreamJoin {
 public:
  explicit StreamJoin(const std::optional<c10::Stream>& side) : side_(side) {}
  ~StreamJoin() {
    if (!side_) return;
    try {
      wait_for_stream(current_stream_of(side_->device()), *side_);
    } catch (const c10::Error&) {
      // The device has failed: the next operation says so.
    }
  }
  StreamJoin(const StreamJoin&) = delete;
  StreamJoin& operator=(const StreamJoin&) = delete;

 private:
  std::optional<c10::Stream> side_;
};

}  // namespace penstock::runtime
