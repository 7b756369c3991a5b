// Groups over a c10d process group whose ranks find each other through a store: NCCL.
#pragma once

#include "comm/rendezvous/rendezvous.h"
#include "comm/world/generation.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace penstock::comm {

template <class ProcessGroup>
class StoreTransport : public Transport {
 public:
  StoreTransport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                 std::chrono::milliseconds join_timeout, schedule::SendMode send_mode)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        join_timeout_(join_timeout),
        send_mode_(send_mode) {}

  schedule::SendMode send_mode() const override { return send_mode_; }

  bool collectives_have_futures() const override { return false; }

  c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration& generation, const std::string& name,
                                            const std::vector<int>& members, int me) override {
    const std::string key = prefix_ + "group/" + name;
    await_members(*store_, generation, key, members, join_timeout_);
    const auto store = c10::make_intrusive<c10d::PrefixStore>(key, store_->clone());
    return c10::make_intrusive<ProcessGroup>(store, me, static_cast<int>(members.size()));
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
  std::chrono::milliseconds join_timeout_;
  schedule::SendMode send_mode_;
};

}  // namespace penstock::comm
