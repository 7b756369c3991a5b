// How a small message gets quickly from one rank's thread to another's where the transport has a thread of
// its own that moves the bytes (Gloo). Two things cost more than the message itself:
//   - That thread is woken on the core of the sender, and waits there until the sender has nothing more to
//   do. So the sender
//     lets it go first.
//   - A thread that blocks takes tens of microseconds to wake up, and the transport cannot be asked whether a
//   receive is done.
//     So the end of the memory is marked when the receive is posted, and whoever waits looks for a moment
//     whether the mark is gone before it blocks. What it sees is only a reason to stop looking: the wait that
//     follows says whether the message is there.
// Both give up the core, which is for nothing where many threads want it; then they rest for a while.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace penstock {

//! After a send: whom it has woken runs first.
void give_way();

class Arrival {
 public:
  Arrival() = default;  //!< watches nothing
  //! Marks the end of the memory; before the receive is posted.
  explicit Arrival(const at::Tensor& memory);

  //! Looks until the mark is gone, for some hundred microseconds at most, and gives way to others meanwhile.
  void look() const;

 private:
  bool marked() const;

  std::uint32_t* last_ = nullptr;
};

}  // namespace penstock
