// The accesses of streams to one block of memory, and the conflicts between them.
#pragma once

#include "stream_clocks.h"

#include <string>
#include <vector>

namespace penstock::test::simulated {

struct Access {
  std::size_t begin = 0, end = 0;  //!< bytes of the block
  Moment moment;
  bool write = false;
  std::string operation;
  bool before_free = false;  //!< The memory was freed since then.
};

class AccessHistory {
 public:
  //! Adds an access and returns the earlier ones that it conflicts with: same bytes, at least one write, and
  //! not covered by `order`, the clock of its stream.
  std::vector<Access> add(Access next, const VectorClock& order);

  //! The tensor is gone. Accesses on `ordered` streams cannot conflict with later tensors, because the
  //! allocator waits for these streams.
  void on_free(const std::vector<StreamIndex>& ordered);

 private:
  std::vector<Access> accesses_;
};

}  // namespace penstock::test::simulated
