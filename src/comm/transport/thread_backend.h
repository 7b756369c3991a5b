// A c10d backend whose ranks are threads of one process. Inputs are copied when an operation is issued, so a
// send completes immediately. Every reduction runs in rank order. Ranks may use different devices: a rank
// moves what it receives to the device of its own tensors.
#pragma once

#include "comm/transport/streams.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace penstock::comm {

//! A copy of a tensor for other threads.
class ThreadMessage {
 public:
  explicit ThreadMessage(const at::Tensor& tensor);

  const at::Tensor& sent() const { return copy_; }
  //! Returns the copy on a device, usable on the current streams of the calling thread.
  at::Tensor on(c10::Device device) const;

 private:
  at::Tensor copy_;
  StreamPoint copied_;
};

//! The state that the threads of one group share.
struct ThreadExchange {
  struct Channel {
    std::uint64_t sent = 0;
    std::uint64_t wanted = 0;
    std::map<std::uint64_t, ThreadMessage> messages;  //!< by index: receive n gets message n
  };
  struct Slot {
    std::vector<std::vector<ThreadMessage>> given;  //!< by rank
    int arrived = 0;
    int taken = 0;
  };

  std::mutex mutex;
  //! By rank: it has a message, all ranks have joined a collective, or its work was aborted. A single one
  //! would wake every rank for every message. Access only under the lock; references stay valid.
  std::map<int, std::condition_variable> changed;
  std::map<std::tuple<int, int, int>, Channel> channels;  //!< (from, to, tag)
  std::map<std::uint64_t, Slot> slots;                    //!< by the index of the collective
};

class ThreadBackend : public c10d::Backend {
 public:
  ThreadBackend(int rank, int size, std::shared_ptr<ThreadExchange> exchange);

  const std::string getBackendName() const override { return "threads"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_rows,
                                               std::vector<std::int64_t>& input_rows,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  using Given = std::vector<std::vector<ThreadMessage>>;
  //! Contributes `inputs` to the next collective. `finish` runs with the inputs of all ranks when all joined.
  c10::intrusive_ptr<c10d::Work> meet(const std::vector<at::Tensor>& inputs,
                                      std::function<void(const Given&)> finish);

  std::shared_ptr<ThreadExchange> exchange_;
  std::uint64_t next_ = 0;
};

}  // namespace penstock::comm
