// Reduces the latency of small messages for transports that copy data on their own thread (Gloo). Two delays
// cost more than the message itself:
//   - The transport thread wakes on the core of the sender and waits there until the sender blocks. The
//     sender therefore yields after a send.
//   - A blocked thread takes tens of microseconds to wake up, and the transport cannot report without
//     blocking whether a receive is done. A receive therefore marks the end of its buffer, and the waiting
//     thread polls the mark for a short time before it blocks. The mark only ends the polling: the wait that
//     follows decides whether the message has arrived.
// Both yield the core. That does not help if many threads compete for it; then both pause for a while.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace penstock::comm {

//! Called after a send: yields the core to the thread that the send woke.
void yield_to_receiver();

class ArrivalMark {
 public:
  ArrivalMark() = default;  //!< polls nothing
  //! Marks the end of the buffer. Must be called before the receive is posted.
  explicit ArrivalMark(const at::Tensor& memory);

  //! Polls until the mark is overwritten, for at most 200 microseconds, and yields the core between polls.
  void look() const;

 private:
  bool marked() const;

  std::uint32_t* last_ = nullptr;
};

}  // namespace penstock::comm
