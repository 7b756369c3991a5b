// Groups over NCCL, compiled if libtorch has it and its headers are found. Collectives run over a
// communicator of the group, if it has any, sends and receives over one communicator per pair of ranks. No
// test machine has a GPU: it is tested on a simulated CUDA runtime (docs/backends.md).
#include "base/text.h"
#include "comm/failure/sockets.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/store_client.h"
#include "comm/transport/gloo_transport.h"
#include "comm/transport/group_connection.h"
#include "comm/transport/optional_backends.h"
#include "comm/transport/pair_channels.h"

#include <penstock/base/error.h>

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace penstock::comm {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// What the threads that open communicators need. They may outlive the group.
struct Opening {
  std::shared_ptr<WorldGeneration> generation;
  c10::intrusive_ptr<c10d::Store> store;
  std::string key;
  std::chrono::milliseconds join_timeout;
  c10::Device device;
};

// Creates a process group and opens its communicator. Blocks until all ranks of it do the same.
BackendPtr open_communicator(const Opening& opening, const std::string& key, int rank, int size) {
  const c10::DeviceGuard guard(opening.device);
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  // Penstock's own timeout comes first, and names the operation and the rank.
  options->timeout = opening.generation->timeout + std::chrono::minutes(1);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(key, opening.store->clone());
  auto made = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  made->setBoundDeviceId(opening.device);
  made->eagerConnectSingleDevice(opening.device);
  return made;
}

class NcclBackend : public c10d::Backend {
 public:
  //! `collectives` is null in a group that only sends and receives.
  NcclBackend(BackendPtr collectives, const Opening& opening, const std::vector<int>& members, int me)
      : c10d::Backend(me, static_cast<int>(members.size())),
        collectives_(std::move(collectives)),
        pairs_(me, [opening, members, me](int peer) {
          const auto [low, high] = std::minmax(me, peer);
          const std::string key = str_cat(opening.key, "/pair/", low, "-", high);
          const auto at = [&](int position) { return members[static_cast<std::size_t>(position)]; };
          await_members(*opening.store->clone(), *opening.generation, key, {at(low), at(high)},
                        opening.generation->timeout);
          return open_communicator(opening, key, me == low ? 0 : 1, 2);
        }) {}

  const std::string getBackendName() const override { return "nccl"; }

  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return pairs_.send(tensors, to, tag);
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return pairs_.recv(tensors, from, tag);
  }
  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return collectives().broadcast(tensors, options);
  }
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return collectives().allreduce(tensors, options);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return collectives()._allgather_base(output, input, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return collectives()._reduce_scatter_base(output, input, options);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_rows,
                        std::vector<std::int64_t>& input_rows,
                        const c10d::AllToAllOptions& options) override {
    return collectives().alltoall_base(output, input, output_rows, input_rows, options);
  }

  void abort() override {
    pairs_.abort();
    if (collectives_) collectives_->abort();
  }
  void shutdown() override {
    pairs_.shutdown();
    if (collectives_) collectives_->shutdown();
  }

 private:
  c10d::Backend& collectives() const {
    if (collectives_) return *collectives_;
    throw UsageError("this group has no collectives of device tensors", {},
                     "use the group that it was made from");
  }

  BackendPtr collectives_;
  PairChannels pairs_;
};

// NCCL's own choice of a network interface may be one that the other machines cannot reach. Keeps what the
// user set.
void choose_interface(const std::string& address) {
  if (is_loopback(address)) return;
  if (const std::string name = interface_of(address); !name.empty())
    setenv("NCCL_SOCKET_IFNAME", ("=" + name).c_str(), 0);
}

class NcclTransport : public Transport {
 public:
  NcclTransport(c10::intrusive_ptr<c10d::Store> store, std::string prefix, const std::string& address,
                c10::Device device, std::chrono::milliseconds join_timeout)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        device_(device),
        join_timeout_(join_timeout),
        control_(make_gloo_transport(store_, prefix_, address, join_timeout)) {
    // libtorch's watchdog would end the process when a rank fails, or wait for a minute to write its own
    // records. Penstock aborts the communicators itself, and the process survives.
    setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
    setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 0);
    setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100", 0);
    setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);
    // A warning that the transfers of a process group are serialized: that is what a pair needs.
    setenv("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "0", 0);
    choose_interface(address);
  }

  //! NCCL runs the transfers of a pair of ranks on one stream, in the order in which they are issued.
  schedule::SendMode send_mode() const override { return schedule::SendMode::Ordered; }
  bool collectives_have_futures() const override { return false; }
  bool runs_on_stream() const override { return true; }
  bool averages() const override { return true; }
  std::shared_ptr<Transport> control() const override { return control_; }

  BackendPtr connect(WorldGeneration& generation, const std::string& name, const std::vector<int>& members,
                     int me) override {
    const Opening opening = opening_of(generation, name);
    await_members(*store_, generation, opening.key, members, join_timeout_);
    const GroupConnection connection{.generation = generation,
                                     .store = *store_,
                                     .prefix = prefix_,
                                     .name = name,
                                     .members = members,
                                     .timeout = std::min(join_timeout_, generation.timeout),
                                     .hint =
                                         "NCCL_DEBUG=INFO shows what NCCL does; NCCL_SOCKET_IFNAME selects "
                                         "the network interface"};
    return connection.run(
        [opening, members, me]() -> BackendPtr {
          return c10::make_intrusive<NcclBackend>(
              open_communicator(opening, opening.key, me, static_cast<int>(members.size())), opening, members,
              me);
        },
        [](c10d::Backend& late) { late.abort(); });
  }
  BackendPtr connect_transfers(WorldGeneration& generation, const std::string& name,
                               const std::vector<int>& members, int me) override {
    return c10::make_intrusive<NcclBackend>(BackendPtr(), opening_of(generation, name), members, me);
  }

 private:
  Opening opening_of(WorldGeneration& generation, const std::string& name) const {
    return {.generation = generation.shared_from_this(),
            .store = store_,
            .key = prefix_ + "nccl/" + name,
            .join_timeout = join_timeout_,
            .device = device_};
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
  c10::Device device_;
  std::chrono::milliseconds join_timeout_;
  std::shared_ptr<Transport> control_;
};

}  // namespace

std::shared_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                               const std::string& address, c10::Device device,
                                               std::chrono::milliseconds join_timeout) {
  return std::make_shared<NcclTransport>(std::move(store), std::move(prefix), address, device, join_timeout);
}

bool nccl_present() {
  return true;
}

std::optional<std::string> nccl_version() {
  return c10d::getNcclVersion();
}

}  // namespace penstock::comm
