// Channels of pairs of ranks.
#include "comm/transport/pair_channels.h"

#include "comm/transport/streams.h"

#include <penstock/base/error.h>

#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>

namespace penstock::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// A transfer that was issued before its channel was open.
class QueuedTransfer : public c10d::Work {
 public:
  using Call = std::function<WorkPtr(c10d::Backend&)>;

  QueuedTransfer(int peer, c10d::OpType type, const at::Tensor& tensor, Call call)
      : c10d::Work(peer, type),
        device_(tensor.device()),
        issued_(current_stream(tensor)),
        call_(std::move(call)) {}

  //! Issues the transfer. On a stream that waits only for the work that was on the current stream when the
  //! transfer was queued: what the rank launched since then may itself wait for the peer.
  void start(c10d::Backend& backend) {
    c10::OptionalStreamGuard guard;
    if (!device_.is_cpu()) {
      const c10::impl::VirtualGuardImpl devices(device_.type());
      guard.reset_stream(devices.getStreamFromGlobalPool(device_, false));
      issued_.block(devices.getStream(device_));
    }
    try {
      settle(call_(backend), nullptr);
    } catch (...) {
      settle(nullptr, std::current_exception());
    }
  }
  void fail(const std::exception_ptr& error) { settle(nullptr, error); }

  bool isCompleted() override {
    const std::lock_guard lock(mutex_);
    return error_ || (started_ && started_->isCompleted());
  }
  std::exception_ptr exception() const override {
    const std::lock_guard lock(mutex_);
    return started_ ? started_->exception() : error_;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return started_ || error_; });
    if (error_) std::rethrow_exception(error_);
    const WorkPtr started = started_;
    lock.unlock();
    return started->wait(timeout);
  }

 private:
  void settle(const WorkPtr& started, const std::exception_ptr& error) {
    {
      const std::lock_guard lock(mutex_);
      if (started_ || error_) return;
      started_ = started;
      error_ = error;
      call_ = nullptr;
    }
    changed_.notify_all();
  }

  c10::Device device_;
  StreamPoint issued_;
  Call call_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  WorkPtr started_;
  std::exception_ptr error_;
};

std::exception_ptr aborted_error() {
  return std::make_exception_ptr(CommError("the connection of the pair was aborted"));
}

}  // namespace

struct PairChannels::Channel {
  std::mutex mutex;
  c10::intrusive_ptr<c10d::Backend> backend;  //!< set when the channel is open
  std::deque<c10::intrusive_ptr<QueuedTransfer>> queued;
  std::exception_ptr error;

  // Issues what was queued, in order. A transfer that is issued meanwhile joins the queue.
  void opened(const c10::intrusive_ptr<c10d::Backend>& made) {
    for (;;) {
      c10::intrusive_ptr<QueuedTransfer> next;
      {
        const std::lock_guard lock(mutex);
        if (error) break;
        if (queued.empty()) {
          backend = made;
          return;
        }
        next = std::move(queued.front());
        queued.pop_front();
      }
      next->start(*made);
    }
    made->abort();
  }

  void fail(const std::exception_ptr& cause) {
    std::deque<c10::intrusive_ptr<QueuedTransfer>> waiting;
    {
      const std::lock_guard lock(mutex);
      if (!error) error = cause;
      waiting.swap(queued);
    }
    for (const auto& transfer : waiting) transfer->fail(cause);
  }
};

PairChannels::PairChannels(int rank, Open open) : rank_(rank), open_(std::move(open)) {}

std::shared_ptr<PairChannels::Channel> PairChannels::channel(int peer) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Channel>& found = channels_[peer];
  if (found) return found;
  found = std::make_shared<Channel>();
  if (aborted_) {
    found->error = aborted_error();
    return found;
  }
  std::thread([channel = found, open = open_, peer] {
    try {
      channel->opened(open(peer));
    } catch (...) {
      channel->fail(std::current_exception());
    }
  }).detach();
  return found;
}

WorkPtr PairChannels::transfer(int peer, c10d::OpType type, const std::vector<at::Tensor>& tensors,
                               std::function<WorkPtr(c10d::Backend&, std::vector<at::Tensor>&)> call) {
  if (peer == rank_)
    throw UsageError("a rank cannot send to itself over this transport", {}, "copy the tensor instead");
  const auto channel = this->channel(peer);
  c10::intrusive_ptr<c10d::Backend> open;
  {
    const std::lock_guard lock(channel->mutex);
    if (channel->error) std::rethrow_exception(channel->error);
    open = channel->backend;
    if (!open) {
      auto later = [call = std::move(call), given = std::vector<at::Tensor>(tensors)](
                       c10d::Backend& backend) mutable { return call(backend, given); };
      return channel->queued.emplace_back(
          c10::make_intrusive<QueuedTransfer>(peer, type, tensors.at(0), std::move(later)));
    }
  }
  std::vector<at::Tensor> given = tensors;
  return call(*open, given);
}

WorkPtr PairChannels::send(const std::vector<at::Tensor>& tensors, int to, int tag) {
  const int position = to < rank_ ? 0 : 1;
  return transfer(to, c10d::OpType::SEND, tensors,
                  [position, tag](c10d::Backend& backend, std::vector<at::Tensor>& given) {
                    return backend.send(given, position, tag);
                  });
}

WorkPtr PairChannels::recv(const std::vector<at::Tensor>& tensors, int from, int tag) {
  const int position = from < rank_ ? 0 : 1;
  return transfer(from, c10d::OpType::RECV, tensors,
                  [position, tag](c10d::Backend& backend, std::vector<at::Tensor>& given) {
                    return backend.recv(given, position, tag);
                  });
}

void PairChannels::abort() {
  std::map<int, std::shared_ptr<Channel>> all;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    all = channels_;
  }
  for (const auto& [peer, channel] : all) {
    channel->fail(aborted_error());
    c10::intrusive_ptr<c10d::Backend> backend;
    {
      const std::lock_guard lock(channel->mutex);
      backend = channel->backend;
    }
    if (backend) backend->abort();
  }
}

void PairChannels::shutdown() {
  const std::lock_guard lock(mutex_);
  for (const auto& [peer, channel] : channels_) {
    const std::lock_guard channel_lock(channel->mutex);
    if (channel->backend) channel->backend->shutdown();
  }
}

}  // namespace penstock::comm
