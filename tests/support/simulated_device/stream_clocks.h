// Vector clocks of streams: which work is known to happen before which.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::test::simulated {

//! The default stream and a pool, as in libtorch's CUDA backend.
inline constexpr c10::StreamId kStreamsPerDevice = 33;

using StreamIndex = std::size_t;  //!< device * kStreamsPerDevice + id

StreamIndex index_of(const c10::Stream& stream);
c10::Stream stream_at(StreamIndex index);

//! The n-th launch on a stream.
struct Moment {
  StreamIndex stream = 0;
  std::uint64_t launch = 0;
};

//! The launches of every stream that precede something.
class VectorClock {
 public:
  std::uint64_t operator[](StreamIndex stream) const {
    return stream < launches_.size() ? launches_[stream] : 0;
  }
  bool covers(Moment moment) const { return (*this)[moment.stream] >= moment.launch; }
  bool covers(const VectorClock& other) const;
  void merge(const VectorClock& other);
  Moment advance(StreamIndex stream);

 private:
  std::vector<std::uint64_t> launches_;
};

//! Clocks of all streams and of the host. The host has one clock for all threads: threads synchronize in ways
//! that cannot be seen here, so a wait of one thread counts for all of them.
class StreamClocks {
 public:
  //! A launch happens after everything that the host has waited for.
  Moment launch(StreamIndex stream);
  const VectorClock& of(StreamIndex stream) { return clock(stream); }
  const VectorClock& host() const { return host_; }
  void stream_wait(StreamIndex stream, const VectorClock& clock);
  void host_wait(const VectorClock& clock) { host_.merge(clock); }
  //! Everything that was launched on a device.
  VectorClock of_device(c10::DeviceIndex device) const;

 private:
  VectorClock& clock(StreamIndex stream);

  std::vector<VectorClock> streams_;
  VectorClock host_;
};

}  // namespace penstock::test::simulated
