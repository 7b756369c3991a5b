// A c10d backend whose ranks are threads of one process. Inputs are copied when an operation is issued, so a
// send completes immediately. Every reduction runs in rank order. Ranks may use different devices: a rank
// moves what it receives to the device of its own tensors.
#pragma once

#include "comm/transport/streams.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
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

//! A receive that has been issued, and its message once that has arrived. Access under the lock of its inbox.
struct ThreadReceive {
  std::optional<ThreadMessage> message;
};

//! What a rank of a group waits for. Only this rank waits on it, so a message wakes no other rank.
struct ThreadInbox {
  //! Messages and receives with the same sender and tag match in order; one of the lists is empty.
  struct Channel {
    std::deque<ThreadMessage> messages;
    std::deque<std::shared_ptr<ThreadReceive>> receives;
  };

  std::mutex mutex;
  std::condition_variable changed;                  //!< an arrival, the end of a collective, or an abort
  std::map<std::pair<int, int>, Channel> channels;  //!< (from, tag); only those that are not empty
};

//! A collective that some rank has joined.
struct ThreadMeeting {
  explicit ThreadMeeting(int size) : given(static_cast<std::size_t>(size)) {}
  std::vector<std::vector<ThreadMessage>> given;  //!< by rank; complete and constant once all have arrived
  std::atomic<int> arrived{0};
};

//! The state that the threads of one group share. No tensor is copied under a lock.
struct ThreadExchange {
  explicit ThreadExchange(int size) : inboxes(static_cast<std::size_t>(size)) {}
  std::vector<ThreadInbox> inboxes;                                  //!< by rank
  std::mutex mutex;                                                  //!< of `meetings`
  std::map<std::uint64_t, std::shared_ptr<ThreadMeeting>> meetings;  //!< open ones, by index
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

  ThreadInbox& inbox(int rank) { return exchange_->inboxes[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<ThreadExchange> exchange_;
  std::uint64_t next_ = 0;
};

}  // namespace penstock::comm
