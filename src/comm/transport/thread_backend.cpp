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

// Waits on the exchange until `ready` returns true, then runs `finish`; both run under its lock.
class ThreadWork : public c10d::Work {
 public:
  ThreadWork(int rank, c10d::OpType op, std::shared_ptr<ThreadExchange> exchange, std::function<bool()> ready,
             std::function<void()> finish)
      : c10d::Work(rank, op),
        member_(rank),
        exchange_(std::move(exchange)),
        ready_(std::move(ready)),
        finish_(std::move(finish)) {}

  bool isCompleted() override {
    const std::lock_guard lock(exchange_->mutex);
    return settle();
  }

  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(exchange_->mutex);
    const auto over = [this] { return settle() || aborted_; };
    std::condition_variable& changed = exchange_->changed[member_];
    if (timeout == kNoTimeout) {
      changed.wait(lock, over);
    } else if (!changed.wait_for(lock, timeout, over)) {
      throw CommError("timed out");
    }
    if (done_ && error_) std::rethrow_exception(error_);
    return done_;
  }

  void abort() override {
    const std::lock_guard lock(exchange_->mutex);
    aborted_ = true;
    exchange_->changed[member_].notify_all();
  }

 private:
  bool settle() {
    if (done_ || !ready_()) return done_;
    done_ = true;
    try {
      finish_();
    } catch (...) {
      error_ = std::current_exception();
    }
    return true;
  }

  int member_;
  std::shared_ptr<ThreadExchange> exchange_;
  std::function<bool()> ready_;
  std::function<void()> finish_;
  std::exception_ptr error_;
  bool done_ = false;
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
  const ThreadMessage message(tensors.at(0));
  {
    const std::lock_guard lock(exchange_->mutex);
    ThreadExchange::Channel& channel = exchange_->channels[{getRank(), to, tag}];
    channel.messages.emplace(channel.sent++, message);
    exchange_->changed[to].notify_all();
  }
  return c10::make_intrusive<ThreadWork>(
      getRank(), c10d::OpType::SEND, exchange_, [] { return true; }, [] {});
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  const std::lock_guard lock(exchange_->mutex);
  const std::tuple<int, int, int> key{from, getRank(), tag};
  const std::uint64_t number = exchange_->channels[key].wanted++;
  ThreadExchange* const exchange = exchange_.get();
  const auto ready = [exchange, key, number] { return exchange->channels[key].messages.contains(number); };
  const auto finish = [exchange, key, number, into = tensors.at(0), from] {
    auto& messages = exchange->channels[key].messages;
    const auto found = messages.find(number);
    const ThreadMessage message = std::move(found->second);
    messages.erase(found);
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
  ThreadExchange* const exchange = exchange_.get();
  const int size = getSize();
  std::vector<ThreadMessage> messages(inputs.begin(), inputs.end());
  {
    const std::lock_guard lock(exchange->mutex);
    ThreadExchange::Slot& slot = exchange->slots[number];
    slot.given.resize(static_cast<std::size_t>(size));
    slot.given[static_cast<std::size_t>(getRank())] = std::move(messages);
    if (++slot.arrived == size)
      for (auto& [rank, changed] : exchange->changed) changed.notify_all();
  }
  const auto ready = [exchange, number, size] { return exchange->slots[number].arrived == size; };
  const auto take = [exchange, number, size, finish = std::move(finish)] {
    ThreadExchange::Slot& slot = exchange->slots[number];
    const bool last = ++slot.taken == size;
    const Given given = slot.given;
    if (last) exchange->slots.erase(number);
    finish(given);
  };
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
