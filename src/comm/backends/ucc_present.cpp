// Groups over UCC, compiled where the libtorch at hand has it. Never run: no machine of ours has it (docs/backends.md).
#include "comm/other_backends.h"
#include "comm/rendezvous.h"

#include <penstock/comm/world.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupUCC.hpp>

#include <utility>

namespace penstock {
namespace {

class UCCTransport : public Transport {
 public:
  UCCTransport(c10::intrusive_ptr<c10d::Store> store, std::string prefix, std::chrono::milliseconds join_timeout)
      : store_(std::move(store)), prefix_(std::move(prefix)), join_timeout_(join_timeout) {}

  bool collectives_have_futures() const override { return false; }

  c10::intrusive_ptr<c10d::Backend> connect(Domain& domain, const std::string& name, const std::vector<int>& members,
                                            int me) override {
    const std::string key = prefix_ + "group/" + name;
    await_members(*store_, domain, key, members, join_timeout_);
    const auto store = c10::make_intrusive<c10d::PrefixStore>(key, store_->clone());
    return c10::make_intrusive<c10d::ProcessGroupUCC>(store, me, static_cast<int>(members.size()));
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
  std::chrono::milliseconds join_timeout_;
};

}  // namespace

std::shared_ptr<Transport> make_ucc_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                               std::chrono::milliseconds join_timeout) {
  return std::make_shared<UCCTransport>(std::move(store), std::move(prefix), join_timeout);
}
bool ucc_present() { return true; }

}  // namespace penstock
