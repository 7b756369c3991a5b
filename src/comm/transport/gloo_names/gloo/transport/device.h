// Devices and buffers of Gloo. See context.h.
#pragma once

namespace gloo::transport {

class Device;

//! Owned by operations of ProcessGroupGloo.hpp, whose implicit destructors delete it.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
