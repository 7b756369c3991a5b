// The transport of a group of one rank: it needs no connections.
#pragma once

#include "comm/transport/thread_backend.h"
#include "comm/world/generation.h"

#include <memory>
#include <string>
#include <vector>

namespace penstock::comm {

class SelfTransport : public Transport {
 public:
  c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration& /*generation*/, const std::string& /*name*/,
                                            const std::vector<int>& members, int me) override {
    const int size = static_cast<int>(members.size());
    return c10::make_intrusive<ThreadBackend>(me, size, std::make_shared<ThreadExchange>(size));
  }
  //! A group of one rank never sends.
  schedule::SendMode send_mode() const override { return schedule::SendMode::Buffered; }
  bool collectives_have_futures() const override { return false; }
  bool can_close_after_failure() const override { return true; }
};

}  // namespace penstock::comm
