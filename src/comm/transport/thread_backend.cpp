// The c10d backend of thread ranks.
#include "comm/transport/thread_backend.h"

#include "base/text.h"
#include "comm/transport/reduction.h"

#include <penstock/base/error.h>

#include <ATen/ATen.h>

#include <functional>
#include <utility>

namespace penstock::comm {
namespace {

// Waits until `ready` returns true, then runs `finish`. `ready` runs under the lock of the rank's inbox,
// `finish` without a lock, by the first thread that asks.
class ThreadWork : public c10d::Work {
 public:
  ThreadWork(int rank, c10d::OpType op, std::shared_ptr<ThreadExchange> exchange, std::function<bool()> ready,
             std::function<void()> finish)
      : c10d::Work(rank, op),
        exchange_(std::move(exchange)),
        inbox_(exchange_->inboxes[static_cast<std::size_t>(rank)]),
        ready_(std::move(ready)),
        finish_(std::move(finish)) {}

  bool isCompleted() override {
    std::unique_lock lock(inbox_.mutex);
    if (can_finish()) finish(lock);
    return state_ == State::Done;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(inbox_.mutex);
    const auto over = [this] { return state_ == State::Done || can_finish() || aborted_; };
    if (timeout == kNoTimeout) {
      inbox_.changed.wait(lock, over);
    } else if (!inbox_.changed.wait_for(lock, timeout, over)) {
      throw CommError("timed out");
    }
    if (can_finish()) finish(lock);
    if (state_ == State::Done && error_) std::rethrow_exception(error_);
    return state_ == State::Done;
  }

  void abort() override {
    const std::lock_guard lock(inbox_.mutex);
    aborted_ = true;
    inbox_.changed.notify_all();
  }

 private:
  enum class State { Waiting, Finishing, Done };

  bool can_finish() const { return state_ == State::Waiting && ready_(); }

  void finish(std::unique_lock<std::mutex>& lock) {
    state_ = State::Finishing;
    lock.unlock();
    try {
      finish_();
    } catch (...) {
      error_ = std::current_exception();
    }
    ready_ = nullptr;
    finish_ = nullptr;  // releases the messages
    lock.lock();
    state_ = State::Done;
    inbox_.changed.notify_all();
  }

  std::shared_ptr<ThreadExchange> exchange_;
  ThreadInbox& inbox_;
  std::function<bool()> ready_;
  std::function<void()> finish_;
  std::exception_ptr error_;
  State state_ = State::Waiting;
  bool aborted_ = false;
};

void copy_into(const at::Tensor& output, const ThreadMessage& message) {
  output.detach().copy_(message.on(output.device()));
}

// Reduces one tensor per rank, in rank order. `tensors` returns the tensor of a rank, on the device of the
// caller.
at::Tensor reduced(std::size_t ranks, const std::function<at::Tensor(std::size_t)>& tensors,
                   const c10d::ReduceOp& op) {
  at::Tensor sum = tensors(0).clone();
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    const at::Tensor next = tensors(rank);
    if (next.sizes() != sum.sizes()) {
      throw ShapeError(
          str_cat("rank 0 and rank ", rank, " passed tensors of different shapes to a reduction"));
    }
    reduce_into(sum, next, op);
  }
  if (op == c10d::ReduceOp::AVG) sum.div_(static_cast<std::int64_t>(ranks));
  return sum;
}

}  // namespace

ThreadMessage::ThreadMessage(const at::Tensor& tensor)
    : copy_(tensor.detach().clone(at::MemoryFormat::Contiguous)), copied_(current_stream(copy_)) {}

at::Tensor ThreadMessage::on(c10::Device device) const {
  if (const auto stream = current_stream(copy_)) {
    copied_.block(*stream);
    copy_.record_stream(*stream);  // the sender's stream may be another one
  }
  return copy_.to(device);
}

ThreadBackend::ThreadBackend(int rank, int size, std::shared_ptr<ThreadExchange> exchange)
    : c10d::Backend(rank, size), exchange_(std::move(exchange)) {}

c10::intrusive_ptr<c10d::Backend::Options> ThreadBackend::getBackendOptions() {
  return c10::make_intrusive<c10d::Backend::Options>("threads");
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  ThreadMessage message(tensors.at(0));
  ThreadInbox& receiver = inbox(to);
  {
    const std::lock_guard lock(receiver.mutex);
    const auto channel = receiver.channels.try_emplace({getRank(), tag}).first;
    auto& receives = channel->second.receives;
    if (receives.empty()) {
      channel->second.messages.push_back(std::move(message));
    } else {
      receives.front()->message = std::move(message);
      receives.pop_front();
      if (receives.empty()) receiver.channels.erase(channel);
      receiver.changed.notify_all();
    }
  }
  return c10::make_intrusive<ThreadWork>(
      getRank(), c10d::OpType::SEND, exchange_, [] { return true; }, [] {});
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  const auto receive = std::make_shared<ThreadReceive>();
  ThreadInbox& mine = inbox(getRank());
  {
    const std::lock_guard lock(mine.mutex);
    const auto channel = mine.channels.try_emplace({from, tag}).first;
    auto& messages = channel->second.messages;
    if (messages.empty()) {
      channel->second.receives.push_back(receive);
    } else {
      receive->message = std::move(messages.front());
      messages.pop_front();
      if (messages.empty()) mine.channels.erase(channel);
    }
  }
  const auto ready = [receive] { return receive->message.has_value(); };
  const auto finish = [receive, into = tensors.at(0), from] {
    const ThreadMessage message = *std::exchange(receive->message, std::nullopt);
    if (message.sent().nbytes() != into.nbytes()) {
      throw ShapeError(str_cat("received ", format_bytes(message.sent().nbytes()), " from rank ", from,
                               " of the group, expected ", format_bytes(into.nbytes())));
    }
    into.detach().view({-1}).copy_(message.on(into.device()).view({-1}).view(into.scalar_type()));
  };
  return c10::make_intrusive<ThreadWork>(getRank(), c10d::OpType::RECV, exchange_, ready, finish);
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::meet(const std::vector<at::Tensor>& inputs,
                                                   std::function<void(const Given&)> finish) {
  const std::uint64_t number = next_++;
  const int size = getSize();
  std::vector<ThreadMessage> messages(inputs.begin(), inputs.end());
  std::shared_ptr<ThreadMeeting> meeting;
  bool last = false;
  {
    const std::lock_guard lock(exchange_->mutex);
    std::shared_ptr<ThreadMeeting>& open = exchange_->meetings[number];
    if (!open) open = std::make_shared<ThreadMeeting>(size);
    meeting = open;
    meeting->given[static_cast<std::size_t>(getRank())] = std::move(messages);
    last = ++meeting->arrived == size;
    if (last) exchange_->meetings.erase(number);
  }
  if (last) {
    for (ThreadInbox& other : exchange_->inboxes) {
      const std::lock_guard lock(other.mutex);  // so that no rank misses it between its check and its wait
      other.changed.notify_all();
    }
  }
  const auto ready = [meeting, size] { return meeting->arrived == size; };
  const auto take = [meeting, finish = std::move(finish)] { finish(meeting->given); };
  return c10::make_intrusive<ThreadWork>(getRank(), c10d::OpType::UNKNOWN, exchange_, ready, take);
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                        const c10d::BroadcastOptions& options) {
  const auto root = static_cast<std::size_t>(options.rootRank);
  std::vector<at::Tensor> inputs;
  if (getRank() == options.rootRank) inputs = tensors;
  return meet(inputs, [tensors, root](const Given& given) {
    for (std::size_t i = 0; i < tensors.size(); ++i) copy_into(tensors[i], given[root][i]);
  });
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                        const c10d::AllreduceOptions& options) {
  return meet(tensors, [tensors, op = options.reduceOp](const Given& given) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto of_rank = [&](std::size_t rank) { return given[rank][i].on(tensors[i].device()); };
      tensors[i].detach().copy_(reduced(given.size(), of_rank, op));
    }
  });
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        const c10d::AllgatherOptions& /*options*/) {
  return meet(inputs, [outputs](const Given& given) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      for (std::size_t rank = 0; rank < given.size(); ++rank) copy_into(outputs[i][rank], given[rank][i]);
    }
  });
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                              const c10d::AllgatherOptions& /*options*/) {
  return meet({input}, [output, n = getSize()](const Given& given) {
    const auto parts = output.detach().view({n, -1}).unbind(0);
    for (std::size_t rank = 0; rank < given.size(); ++rank)
      parts[rank].copy_(given[rank][0].on(output.device()).view({-1}));
  });
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return meet({input}, [output, op = options.reduceOp, rank = getRank(), n = getSize()](const Given& given) {
    const auto slice = [&](std::size_t from) {
      return given[from][0].on(output.device()).view({n, -1})[rank];
    };
    output.detach().view({-1}).copy_(reduced(given.size(), slice, op));
  });
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                            std::vector<std::int64_t>& output_rows,
                                                            std::vector<std::int64_t>& input_rows,
                                                            const c10d::AllToAllOptions& /*options*/) {
  const std::int64_t n = getSize();
  if (input_rows.empty()) input_rows.assign(static_cast<std::size_t>(n), input.size(0) / n);
  if (output_rows.empty()) output_rows.assign(static_cast<std::size_t>(n), output.size(0) / n);
  const std::vector<at::Tensor> parts = input.detach().split_with_sizes(input_rows);
  return meet(parts, [output, output_rows, rank = static_cast<std::size_t>(getRank())](const Given& given) {
    const std::vector<at::Tensor> outputs = output.detach().split_with_sizes(output_rows);
    for (std::size_t from = 0; from < given.size(); ++from) copy_into(outputs[from], given[from][rank]);
  });
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::barrier(const c10d::BarrierOptions& /*options*/) {
  return meet({}, [](const Given&) {});
}

}  // namespace penstock::comm
