// Adopted groups: the caller's backend behind the interface of a transport.
#include "base/text.h"
#include "comm/failure/exception_text.h"
#include "comm/rendezvous/environment.h"
#include "comm/world/access.h"
#include "comm/world/group_impl.h"

#include <penstock/base/error.h>
#include <penstock/comm/adopt.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <numeric>
#include <utility>

namespace penstock::comm {
namespace {

schedule::SendMode send_mode_of(const std::string& backend) {
  if (backend == "gloo" || backend == "mpi" || backend == "ucc") return schedule::SendMode::Buffered;
  return backend == "nccl" ? schedule::SendMode::Ordered : schedule::SendMode::Blocking;
}

class AdoptedTransport : public Transport {
 public:
  AdoptedTransport(c10::intrusive_ptr<c10d::Backend> backend, AdoptOptions options)
      : backend_(std::move(backend)),
        options_(std::move(options)),
        send_mode_(options_.send_mode.value_or(send_mode_of(backend_->getBackendName()))),
        is_gloo_(backend_->getBackendName() == "gloo") {}

  schedule::SendMode send_mode() const override { return send_mode_; }
  bool collectives_have_futures() const override { return is_gloo_; }
  bool has_own_thread() const override { return is_gloo_; }
  bool host_memory_only() const override { return is_gloo_; }
  //! The caller owns the backend and decides when it is destroyed.
  bool can_close_after_failure() const override { return true; }

  c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration& generation, const std::string& name,
                                            const std::vector<int>& members, int me) override {
    if (auto first = std::exchange(backend_, nullptr)) return first;
    if (!options_.connect)
      throw UsageError("the adopted group " + options_.name + " cannot be split into " + name,
                       {.rank = generation.rank, .op = "split"},
                       "set AdoptOptions::connect, which creates the backends of new groups");
    auto made = options_.connect(name, members, me);
    if (!made) throw UsageError("AdoptOptions::connect returned no backend for " + name);
    if (made->getRank() != me || made->getSize() != static_cast<int>(members.size()))
      throw UsageError(str_cat("AdoptOptions::connect returned a backend with rank ", made->getRank(), " of ",
                               made->getSize(), ", expected rank ", me, " of ", members.size()));
    return made;
  }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;  // until the first connect
  AdoptOptions options_;
  schedule::SendMode send_mode_;
  bool is_gloo_;
};

}  // namespace

Group adopt_group(const c10::intrusive_ptr<c10d::Backend>& backend, const AdoptOptions& options) {
  if (!backend) throw UsageError("adopt_group needs a backend, not null");
  const int rank = backend->getRank();
  std::vector<int> members(static_cast<std::size_t>(backend->getSize()));
  std::iota(members.begin(), members.end(), 0);
  return Access::group(make_group(
      options.name, std::move(members), rank, std::make_shared<AdoptedTransport>(backend, options),
      std::make_shared<WorldGeneration>(Rank(rank), operation_timeout(options.timeout, look_in_process))));
}

Group adopt_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const AdoptOptions& options,
                  c10::DeviceType device) {
  if (!group) throw UsageError("adopt_group needs a process group, not null");
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = group->getBackend(device);
  } catch (const std::exception& e) {
    throw UsageError("the process group has no backend for " + c10::DeviceTypeName(device, true) +
                     " tensors: " + exception_text(e));
  }
  return adopt_group(backend, options);
}

}  // namespace penstock::comm
