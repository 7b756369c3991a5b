// Connects groups through shared memory, and through Gloo where they span hosts.
#include "comm/shm/shm_transport.h"

#include "base/fnv1a.h"
#include "comm/shm/shm_backend.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace penstock::comm {
namespace {

class ShmTransport : public Transport {
 public:
  ShmTransport(shm::Host host, std::shared_ptr<Transport> gloo)
      : host_(std::move(host)), gloo_(std::move(gloo)) {}

  schedule::SendMode send_mode() const override { return schedule::SendMode::Buffered; }
  bool collectives_have_futures() const override { return false; }  // see future_of
  bool host_memory_only() const override { return true; }
  bool can_close_after_failure() const override { return true; }
  //! Over Gloo, to another host, somebody must wait; through the ring, in parts, too.
  bool keeps_send(const c10d::Work& work) const override { return host_.direct && is_shm_work(work); }
  bool scatters_reductions(const std::vector<int>& members) const override { return all_here(members); }
  c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work) const override {
    return is_shm_work(work) ? nullptr : gloo_->future_of(work);
  }

  c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration& generation, const std::string& name,
                                            const std::vector<int>& members, int me) override {
    ShmBackend::Setup setup{.rank = me, .index = {}, .channel = fnv1a(name), .link = host_.link};
    for (const int member : members) {
      const auto found = host_.index.find(member);
      setup.index.push_back(found == host_.index.end() ? std::nullopt : std::optional(found->second));
    }
    setup.generation = generation.shared_from_this();
    setup.open_gloo = [gloo = gloo_, world = setup.generation, name, members, me] {
      return gloo->connect(*world, name, members, me);
    };
    return c10::make_intrusive<ShmBackend>(std::move(setup));
  }

  void drain(WorldGeneration& generation) override {
    const auto deadline = std::chrono::steady_clock::now() + generation.timeout;
    host_.link->flush(deadline, [&generation] { return generation.failure.failed(); });
  }

 private:
  bool all_here(const std::vector<int>& members) const {
    return std::all_of(members.begin(), members.end(),
                       [this](int member) { return host_.index.contains(member); });
  }

  shm::Host host_;
  std::shared_ptr<Transport> gloo_;
};

}  // namespace

std::shared_ptr<Transport> make_shm_transport(shm::Host host, std::shared_ptr<Transport> gloo) {
  return std::make_shared<ShmTransport>(std::move(host), std::move(gloo));
}

}  // namespace penstock::comm
