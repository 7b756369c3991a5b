// A c10d backend over shared memory. Operations that it does not implement, messages between hosts and the
// collectives of a group on several hosts go to a Gloo backend.
#pragma once

#include "comm/shm/collectives.h"
#include "comm/world/generation.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock::comm {

class ShmBackend : public c10d::Backend {
 public:
  using Backend = c10d::Backend;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  struct Setup {
    int rank = 0;                           //!< in the group
    std::vector<std::optional<int>> index;  //!< of each member on this host; nullopt if it is on another
    std::uint64_t channel = 0;              //!< identifies the group
    std::shared_ptr<shm::Link> link;
    //! Connects the Gloo backend. Called at once if the group has ranks on several hosts, else when an
    //! operation needs it.
    std::function<c10::intrusive_ptr<Backend>()> open_gloo;
    std::shared_ptr<WorldGeneration> generation;
  };

  explicit ShmBackend(Setup setup);
  ~ShmBackend() override;

  const std::string getBackendName() const override { return "shm"; }
  c10::intrusive_ptr<Backend::Options> getBackendOptions() override;

  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_rows,
                        std::vector<std::int64_t>& input_rows, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Over Gloo.
  WorkPtr reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

 private:
  WorkPtr work(c10d::OpType type, shm::RequestPtr request) const;
  Backend& gloo();
  std::int64_t ranks() const { return static_cast<std::int64_t>(setup_.index.size()); }

  Setup setup_;
  std::shared_ptr<shm::Channel> channel_;
  bool on_one_host_ = true;
  std::mutex mutex_;
  c10::intrusive_ptr<Backend> gloo_;
};

//! Whether the work is one of shared memory and not of Gloo.
bool is_shm_work(const c10d::Work& work);

}  // namespace penstock::comm
