// Vector clocks of streams.
#include "stream_clocks.h"

#include <algorithm>

namespace penstock::test::simulated {

StreamIndex index_of(const c10::Stream& stream) {
  return static_cast<StreamIndex>(stream.device_index() * kStreamsPerDevice + stream.id());
}

c10::Stream stream_at(StreamIndex index) {
  const auto at = static_cast<c10::StreamId>(index);
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(at / kStreamsPerDevice));
  return c10::Stream(c10::Stream::UNSAFE, device, at % kStreamsPerDevice);
}

bool VectorClock::covers(const VectorClock& other) const {
  for (StreamIndex i = 0; i < other.launches_.size(); ++i)
    if ((*this)[i] < other.launches_[i]) return false;
  return true;
}

void VectorClock::merge(const VectorClock& other) {
  if (launches_.size() < other.launches_.size()) launches_.resize(other.launches_.size());
  for (StreamIndex i = 0; i < other.launches_.size(); ++i)
    launches_[i] = std::max(launches_[i], other.launches_[i]);
}

Moment VectorClock::advance(StreamIndex stream) {
  if (launches_.size() <= stream) launches_.resize(stream + 1);
  return {stream, ++launches_[stream]};
}

VectorClock& StreamClocks::clock(StreamIndex stream) {
  if (streams_.size() <= stream) streams_.resize(stream + 1);
  return streams_[stream];
}

Moment StreamClocks::launch(StreamIndex stream) {
  VectorClock& own = clock(stream);
  own.merge(host_);
  return own.advance(stream);
}

void StreamClocks::stream_wait(StreamIndex stream, const VectorClock& waited) {
  clock(stream).merge(waited);
}

VectorClock StreamClocks::of_device(c10::DeviceIndex device) const {
  VectorClock all;
  const auto first = static_cast<StreamIndex>(device * kStreamsPerDevice);
  const StreamIndex last = std::min(first + kStreamsPerDevice, streams_.size());
  for (StreamIndex i = first; i < last; ++i) all.merge(streams_[i]);
  return all;
}

}  // namespace penstock::test::simulated
