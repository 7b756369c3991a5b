// A thread transport that drops the messages between two ranks.
#include "comm/disconnected_pair.h"

#include "comm/transport/thread_backend.h"
#include "comm/world/group_state.h"

#include <map>
#include <mutex>

namespace penstock::test {

struct DeafPair::Hub {
  int one, other;
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<comm::ThreadExchange>> exchanges;

  std::shared_ptr<comm::ThreadExchange> exchange(const std::string& name) {
    const std::lock_guard lock(mutex);
    auto& found = exchanges[name];
    if (!found) found = std::make_shared<comm::ThreadExchange>();
    return found;
  }
};

namespace {

class DeafBackend : public comm::ThreadBackend {
 public:
  DeafBackend(int rank, int size, std::shared_ptr<comm::ThreadExchange> exchange, int deaf_to)
      : comm::ThreadBackend(rank, size, std::move(exchange)), deaf_to_(deaf_to) {}

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    constexpr int nobody_listens_there = 1 << 30;
    return comm::ThreadBackend::send(tensors, to, to == deaf_to_ ? tag + nobody_listens_there : tag);
  }

 private:
  int deaf_to_;
};

template <class Hub>
class DeafTransport : public comm::Transport {
 public:
  explicit DeafTransport(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}

  c10::intrusive_ptr<c10d::Backend> connect(comm::WorldGeneration& domain, const std::string& name,
                                            const std::vector<int>& members, int me) override {
    const int mine = domain.rank.value;
    const int lost = mine == hub_->one ? hub_->other : mine == hub_->other ? hub_->one : -1;
    int deaf_to = -1;
    for (std::size_t i = 0; i < members.size(); ++i)
      if (members[i] == lost) deaf_to = static_cast<int>(i);
    return c10::make_intrusive<DeafBackend>(me, static_cast<int>(members.size()), hub_->exchange(name),
                                            deaf_to);
  }
  bool collectives_have_futures() const override { return false; }
  bool closes_after_a_failure() const override { return true; }

 private:
  std::shared_ptr<Hub> hub_;
};

}  // namespace

DeafPair::DeafPair(int one, int other) : hub_(new Hub{one, other, {}, {}}) {}
DeafPair::~DeafPair() = default;

comm::Group DeafPair::group(const comm::Group& group) const {
  const comm::GroupState& state = *group.state();
  return comm::Group(make_group("deaf/" + state.name, state.members, state.rank,
                                std::make_shared<DeafTransport<Hub>>(hub_), state.domain));
}

}  // namespace penstock::test
