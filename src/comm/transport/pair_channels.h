// Sends and receives of a group over one backend per pair of ranks (NCCL). A communicator runs its transfers
// on one stream, in order. With a communicator per pair, only the transfers of a pair wait for each other;
// this is the order that the validator proves (SendMode::Ordered).
//
// A channel is opened by its first transfer, on a thread of its own: opening blocks until the peer opens it
// too, and ranks may open their channels in any order. Transfers that are issued meanwhile are queued. The
// host waits for the opening only in `wait`.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::comm {

class PairChannels {
 public:
  //! Opens the channel to a peer. Runs on another thread, which may outlive the group: it must not refer to
  //! it.
  using Open = std::function<c10::intrusive_ptr<c10d::Backend>(int peer)>;

  //! `rank` is the position of this rank in the group. In the backend of a channel, the lower rank of the
  //! pair has rank 0.
  PairChannels(int rank, Open open);
  ~PairChannels() = default;
  PairChannels(const PairChannels&) = delete;
  PairChannels& operator=(const PairChannels&) = delete;

  c10::intrusive_ptr<c10d::Work> send(const std::vector<at::Tensor>& tensors, int to, int tag);
  c10::intrusive_ptr<c10d::Work> recv(const std::vector<at::Tensor>& tensors, int from, int tag);

  //! Aborts all channels, also those that are being opened.
  void abort();
  //! Closes all channels after their transfers.
  void shutdown();

  struct Channel;

 private:
  c10::intrusive_ptr<c10d::Work> transfer(
      int peer, c10d::OpType type, const std::vector<at::Tensor>& tensors,
      std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&, std::vector<at::Tensor>&)> call);
  std::shared_ptr<Channel> channel(int peer);

  int rank_;
  Open open_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<Channel>> channels_;
  bool aborted_ = false;
};

}  // namespace penstock::comm
