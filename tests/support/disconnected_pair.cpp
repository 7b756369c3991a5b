// A thread transport that drops the messages between two ranks.
#include "support/disconnected_pair.h"

#include "comm/transport/thread_backend.h"
#include "comm/world/access.h"
#include "comm/world/group_impl.h"

#include <map>
#include <mutex>

namespace penstock::test {

struct DisconnectedPair::Hub {
  int one, other;
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<comm::ThreadExchange>> exchanges;

  std::shared_ptr<comm::ThreadExchange> exchange(const std::string& name, int size) {
    const std::lock_guard lock(mutex);
    auto& found = exchanges[name];
    if (!found) found = std::make_shared<comm::ThreadExchange>(size);
    return found;
  }
};

namespace {

class DroppingBackend : public comm::ThreadBackend {
 public:
  DroppingBackend(int rank, int size, std::shared_ptr<comm::ThreadExchange> exchange, int unreachable)
      : comm::ThreadBackend(rank, size, std::move(exchange)), unreachable_(unreachable) {}

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    constexpr int nobody_listens_there = 1 << 30;
    return comm::ThreadBackend::send(tensors, to, to == unreachable_ ? tag + nobody_listens_there : tag);
  }

 private:
  int unreachable_;
};

template <class Hub>
class DroppingTransport : public comm::Transport {
 public:
  explicit DroppingTransport(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}

  c10::intrusive_ptr<c10d::Backend> connect(comm::WorldGeneration& generation, const std::string& name,
                                            const std::vector<int>& members, int me) override {
    const int mine = generation.rank.value;
    const int lost = mine == hub_->one ? hub_->other : mine == hub_->other ? hub_->one : -1;
    int unreachable = -1;
    for (std::size_t i = 0; i < members.size(); ++i)
      if (members[i] == lost) unreachable = static_cast<int>(i);
    const int size = static_cast<int>(members.size());
    return c10::make_intrusive<DroppingBackend>(me, size, hub_->exchange(name, size), unreachable);
  }
  schedule::SendMode send_mode() const override { return schedule::SendMode::Buffered; }
  bool collectives_have_futures() const override { return false; }
  bool can_close_after_failure() const override { return true; }

 private:
  std::shared_ptr<Hub> hub_;
};

}  // namespace

DisconnectedPair::DisconnectedPair(int one, int other) : hub_(new Hub{one, other, {}, {}}) {}
DisconnectedPair::~DisconnectedPair() = default;

comm::Group DisconnectedPair::group(const comm::Group& group) const {
  const comm::Group::Impl& state = *comm::Access::impl(group);
  return comm::Access::group(make_group("deaf/" + state.name, state.members, state.rank,
                                        std::make_shared<DroppingTransport<Hub>>(hub_), state.generation));
}

}  // namespace penstock::test
