// The only file that includes Gloo's headers. Debian's headers are older than the Gloo inside libtorch, so
// this file uses no Gloo type by value, and a test checks that its object defines none of Gloo's classes.
#include "comm/failure/descriptor_limit.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/transport/gloo_transport.h"
#include "comm/transport/group_connection.h"

#include <pthread.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <mutex>
#include <utility>

namespace penstock::comm {
namespace {

// The threads of a group inherit the scheduling policy of the thread that creates it. Gloo's polling thread
// spins while a sender holds the lock of the connection. If it preempted that sender when it wakes, it would
// spin for a full time slice. A batch thread gets its fair share of time but preempts no other thread.
void let_others_finish_first() {
  const sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
}

// The device of all groups of a world (a device is a polling thread), created on first use.
class Device {
 public:
  explicit Device(std::string address) : address_(std::move(address)) {}

  std::shared_ptr<gloo::transport::Device> get() {
    const std::lock_guard lock(mutex_);
    if (!device_) {
      const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
      device_ = interface != nullptr ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                     : c10d::ProcessGroupGloo::createDeviceForHostname(address_);
    }
    return device_;
  }

 private:
  std::mutex mutex_;
  std::string address_;
  std::shared_ptr<gloo::transport::Device> device_;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::Store> store, std::string prefix, std::string address,
                std::chrono::milliseconds join_timeout)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        join_timeout_(join_timeout),
        device_(std::make_shared<Device>(std::move(address))) {}

  //! Gloo queues a send and returns; messages are matched by tag.
  schedule::SendMode send_mode() const override { return schedule::SendMode::Buffered; }
  bool collectives_have_futures() const override { return true; }
  bool has_own_thread() const override { return true; }
  bool host_memory_only() const override { return true; }

  c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration& generation, const std::string& name,
                                            const std::vector<int>& members, int me) override {
    const std::string key = prefix_ + "group/" + name;
    // Two connections per member, one to the store, and what the device and libtorch open temporarily. Gloo
    // does not report a lack of descriptors, and the other ranks would wait.
    require_descriptors(10 + 2 * static_cast<int>(members.size()), "group " + name);
    await_members(*store_, generation, key, members, join_timeout_);

    const auto store = c10::make_intrusive<c10d::PrefixStore>(key, store_->clone());
    const GroupConnection connection{
        .generation = generation,
        .store = *store_,
        .prefix = prefix_,
        .name = name,
        .members = members,
        .timeout = join_timeout_,
        .hint = "check the network between the machines; GLOO_SOCKET_IFNAME selects the interface"};
    return connection.run([store, me, size = static_cast<int>(members.size()), timeout = generation.timeout,
                           device = device_]() -> c10::intrusive_ptr<c10d::Backend> {
      let_others_finish_first();
      const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
      // One connection per device: even tags use the first, odd tags the second. Data sent in one direction
      // therefore does not wait for the lock of data received from the other (docs/runtime-speed.md).
      options->devices.assign(2, device->get());
      options->threads = 2;
      return c10::make_intrusive<c10d::ProcessGroupGloo>(store, me, size, options);
    });
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
  std::chrono::milliseconds join_timeout_;
  std::shared_ptr<Device> device_;
};

}  // namespace

std::shared_ptr<Transport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                               std::string address, std::chrono::milliseconds join_timeout) {
  return std::make_shared<GlooTransport>(std::move(store), std::move(prefix), std::move(address),
                                         join_timeout);
}

}  // namespace penstock::comm
