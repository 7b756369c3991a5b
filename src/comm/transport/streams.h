// Streams of devices behind libtorch's generic interface, so that the library needs no CUDA header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <optional>

namespace penstock::comm {

//! Returns the current stream of the device on this thread; nullopt for the CPU.
inline std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}
inline std::optional<c10::Stream> current_stream(const at::Tensor& tensor) {
  return tensor.defined() ? current_stream(tensor.device()) : std::nullopt;
}

//! A moment on a stream, which other streams can wait for. Copies share it.
class StreamPoint {
 public:
  StreamPoint() = default;  //!< nothing to wait for
  //! The end of the work that is on the stream now.
  explicit StreamPoint(const std::optional<c10::Stream>& stream) {
    if (!stream) return;
    event_ = std::make_shared<c10::Event>(stream->device_type());
    event_->record(*stream);
  }
  //! Makes the stream wait. The host continues.
  void block(const c10::Stream& stream) const {
    if (event_) event_->block(stream);
  }

 private:
  std::shared_ptr<c10::Event> event_;
};

}  // namespace penstock::comm
