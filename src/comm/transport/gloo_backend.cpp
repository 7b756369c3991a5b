// The only file that includes Gloo's headers. Debian's headers are older than the Gloo inside libtorch, so
// this file uses no Gloo type by value, and a test checks that its object defines none of Gloo's classes.
#include "comm/failure/descriptor_limit.h"
#include "comm/failure/exception_text.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/transport/gloo_transport.h"

#include <pthread.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>
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

// All members are present, and connecting takes milliseconds. After this time, some member cannot be reached.
constexpr std::chrono::seconds kSlow{10};

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

  c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration& generation, const std::string& name,
                                            const std::vector<int>& members, int me) override {
    const std::string key = prefix_ + "group/" + name;
    // Two connections per member, one to the store, and what the device and libtorch open temporarily. Gloo
    // does not report a lack of descriptors, and the other ranks would wait.
    require_descriptors(10 + 2 * static_cast<int>(members.size()), "group " + name);
    await_members(*store_, generation, key, members, join_timeout_);

    // Connecting blocks until every member has joined and cannot be interrupted, so it runs on a thread that
    // can be abandoned.
    auto result = std::make_shared<std::promise<c10::intrusive_ptr<c10d::Backend>>>();
    auto future = result->get_future();
    const auto store = c10::make_intrusive<c10d::PrefixStore>(key, store_->clone());
    std::thread([result, store, me, size = static_cast<int>(members.size()), timeout = generation.timeout,
                 device = device_] {
      try {
        let_others_finish_first();
        const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
        // One connection per device: even tags use the first, odd tags the second. Data sent in one direction
        // therefore does not wait for the lock of data received from the other (docs/runtime-speed.md).
        options->devices.assign(2, device->get());
        options->threads = 2;
        result->set_value(c10::make_intrusive<c10d::ProcessGroupGloo>(store, me, size, options));
      } catch (...) {
        result->set_exception(std::current_exception());
      }
    }).detach();
    const auto start = std::chrono::steady_clock::now();
    const auto limit = start + join_timeout_;
    bool looked = false;
    while (future.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
      generation.failure.throw_if_failed({.rank = generation.rank, .op = "connect " + name});
      const auto now = std::chrono::steady_clock::now();
      if (!looked && (now > limit || now - start > kSlow)) {
        check_members_answer(*store_, generation, prefix_, members);
        looked = true;
      }
      if (now > limit) {
        throw TimeoutError(
            "the ranks of group " + name + " could not connect to each other",
            {.rank = generation.rank, .op = "connect"},
            "check the network between the machines; GLOO_SOCKET_IFNAME selects the interface");
      }
    }
    try {
      return future.get();
    } catch (const std::exception& e) {
      generation.failure.wait_for_report(std::chrono::milliseconds(2000));
      generation.failure.throw_if_failed({.rank = generation.rank, .op = "connect " + name});
      check_members_answer(*store_, generation, prefix_, members);
      throw CommError("cannot connect group " + name + ": " + exception_text(e), {.rank = generation.rank});
    }
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
