// Collectives as phases of sends and receives.
#include "comm/shm/collectives.h"

#include "comm/failure/exception_text.h"
#include "comm/transport/reduction.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace penstock::comm::shm {
namespace {

// Up to this size, every rank sends its tensor to every other rank. That takes one message delay instead of
// two.
constexpr std::size_t kSmallReduction = 16U << 10U;

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

Sink copy_to(const at::Tensor& tensor) {
  return {.memory = bytes_of(tensor), .bytes = tensor.nbytes(), .reduce = {}};
}

Sink reduce_to(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto reduce = [type = tensor.options(), op, element = tensor.element_size()](
                          std::byte* into, const std::byte* from, std::size_t bytes) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const std::array<std::int64_t, 1> count{static_cast<std::int64_t>(bytes / element)};
    reduce_into(at::from_blob(into, count, type), at::from_blob(const_cast<std::byte*>(from), count, type),
                op);
  };
  return {.memory = bytes_of(tensor), .bytes = tensor.nbytes(), .reduce = reduce};
}

}  // namespace

// Runs its phases one after the other. The next one starts when the receives of the last one have ended. The
// sends may end later: a peer reads a message only when it receives it.
class Channel::Collective : public Operation {
 public:
  using Phase = std::function<void(Collective&)>;

  Collective(const Channel& channel, std::int64_t number)
      : members_(channel.members_), channel_(channel.number_), number_(number) {}

  void then(Phase phase) { phases_.push_back(std::move(phase)); }

  //! The messages of a pair of ranks match by their round.
  void send(int round, int to, const at::Tensor& tensor) {
    keep_.push_back(tensor);
    sends_.push_back(engine_->send(key(round, to), tensor.data_ptr(), tensor.nbytes()));
  }
  void receive(int round, int from, const at::Tensor& tensor, Sink sink) {
    keep_.push_back(tensor);
    receives_.push_back(engine_->receive(key(round, from), std::move(sink)));
  }
  void receive(int round, int from, const at::Tensor& tensor) {
    receive(round, from, tensor, copy_to(tensor));
  }

  bool advance(Engine& engine) override {
    engine_ = &engine;
    try {
      while (all_ended(receives_)) {
        if (next_ < phases_.size()) {
          phases_[next_++](*this);
        } else if (all_ended(sends_)) {
          result->end(Request::Status::Done);
          return true;
        } else {
          return false;
        }
      }
      return false;
    } catch (const Failed& failed) {
      result->end(failed.request.status, failed.request.error);
    } catch (const std::exception& e) {
      result->end(Request::Status::Failed, exception_text(e));
    }
    return true;
  }

  const RequestPtr result = std::make_shared<Request>();

 private:
  struct Failed {
    const Request& request;
  };

  //! Forgets the requests that were successful. Throws Failed.
  static bool all_ended(std::vector<RequestPtr>& requests) {
    std::erase_if(requests, [](const RequestPtr& request) {
      if (!request->ended()) return false;
      if (request->status != Request::Status::Done) throw Failed{*request};
      return true;
    });
    return requests.empty();
  }

  // On a channel of their own, collectives do not mix with messages.
  Key key(int round, int member) const {
    constexpr std::int64_t max_rounds = 32;
    return {members_[static_cast<std::size_t>(member)], ~channel_, number_ * max_rounds + round};
  }

  std::vector<int> members_;
  std::uint64_t channel_;
  std::int64_t number_;
  std::vector<Phase> phases_;
  std::size_t next_ = 0;
  std::vector<RequestPtr> receives_;
  std::vector<RequestPtr> sends_;
  std::vector<at::Tensor> keep_;
  Engine* engine_ = nullptr;
};

Key Channel::key(int member, std::int64_t tag) const {
  return {members_[static_cast<std::size_t>(member)], number_, tag};
}

std::unique_ptr<Channel::Collective> Channel::collective() {
  return std::make_unique<Collective>(*this, ++collectives_);
}

RequestPtr Channel::start(std::unique_ptr<Collective> collective) const {
  RequestPtr result = collective->result;
  link_->start(std::move(collective));
  return result;
}

RequestPtr Channel::send(const at::Tensor& tensor, int to, int tag) const {
  const auto owner = [&tensor] { return std::make_shared<at::Tensor>(tensor); };
  return link_->send(key(to, tag), tensor.data_ptr(), tensor.nbytes(), owner);
}

RequestPtr Channel::receive(const at::Tensor& tensor, int from, int tag) const {
  const auto owner = [&tensor] { return std::make_shared<at::Tensor>(tensor); };
  return link_->receive(key(from, tag), copy_to(tensor), owner);
}

RequestPtr Channel::broadcast(const at::Tensor& tensor, int root) {
  auto made = collective();
  made->then([tensor, root, n = size(), me = rank_](Collective& run) {
    if (me != root) return run.receive(0, root, tensor);
    for (int to = 0; to < n; ++to)
      if (to != me) run.send(0, to, tensor);
  });
  return start(std::move(made));
}

RequestPtr Channel::all_gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input) {
  auto made = collective();
  made->then([outputs, input, n = size(), me = rank_](Collective& run) {
    for (int step = 1; step < n; ++step) {
      const int to = (me + step) % n, from = (me + n - step) % n;
      run.send(0, to, input);
      run.receive(0, from, outputs[static_cast<std::size_t>(from)]);
    }
    const at::Tensor& own = outputs[static_cast<std::size_t>(me)];
    if (own.data_ptr() != input.data_ptr()) std::memcpy(own.data_ptr(), input.data_ptr(), input.nbytes());
  });
  return start(std::move(made));
}

RequestPtr Channel::all_to_all(const std::vector<at::Tensor>& outputs,
                               const std::vector<at::Tensor>& inputs) {
  auto made = collective();
  made->then([outputs, inputs, n = size(), me = rank_](Collective& run) {
    for (int step = 1; step < n; ++step) {
      const int to = (me + step) % n, from = (me + n - step) % n;
      run.send(0, to, inputs[static_cast<std::size_t>(to)]);
      run.receive(0, from, outputs[static_cast<std::size_t>(from)]);
    }
    const auto own = static_cast<std::size_t>(me);
    if (inputs[own].nbytes() > 0)
      std::memcpy(outputs[own].data_ptr(), inputs[own].data_ptr(), inputs[own].nbytes());
  });
  return start(std::move(made));
}

// Adds phases that reduce the tensors that the ranks send in round 0 into `sum`, in rank order. `own` is that
// of this rank; it may be `sum` on the first two ranks, where the order of its two operands does not matter.
void Channel::reduce_in_order(Collective& run, const at::Tensor& sum, const at::Tensor& own,
                              const c10d::ReduceOp& op) const {
  const bool in_place = sum.data_ptr() == own.data_ptr();
  const Sink reduce = reduce_to(sum, op);
  for (int from = 0; from < size(); ++from) {
    if (from == rank_ && in_place) continue;
    run.then([=, own_turn = from == rank_, first = from == 0 && !in_place](Collective& now) {
      if (own_turn && first) {
        std::memcpy(sum.data_ptr(), own.data_ptr(), own.nbytes());
      } else if (own_turn) {
        reduce.reduce(reduce.memory, bytes_of(own), own.nbytes());
      } else {
        now.receive(0, from, sum, first ? copy_to(sum) : reduce);
      }
    });
  }
}

RequestPtr Channel::reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                                   const c10d::ReduceOp& op) {
  auto made = collective();
  made->then([inputs, n = size(), me = rank_](Collective& run) {
    for (int step = 1; step < n; ++step)
      run.send(0, (me + step) % n, inputs[static_cast<std::size_t>((me + step) % n)]);
  });
  reduce_in_order(*made, output, inputs[static_cast<std::size_t>(rank_)], op);
  return start(std::move(made));
}

RequestPtr Channel::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  auto made = collective();
  const at::Tensor flat = tensor.view({-1});
  if (tensor.nbytes() <= kSmallReduction) {
    const at::Tensor rows = at::empty({size(), flat.numel()}, flat.options());
    made->then([rows = rows.unbind(0), flat, n = size(), me = rank_](Collective& run) {
      const at::Tensor& own = rows[static_cast<std::size_t>(me)];
      std::memcpy(own.data_ptr(), flat.data_ptr(), flat.nbytes());
      for (int step = 1; step < n; ++step) {
        const int to = (me + step) % n, from = (me + n - step) % n;
        run.send(0, to, own);
        run.receive(0, from, rows[static_cast<std::size_t>(from)]);
      }
    });
    made->then([rows, flat, op](Collective&) {
      const Sink sum = reduce_to(flat, op);
      const std::size_t bytes = flat.nbytes();
      std::memcpy(flat.data_ptr(), rows.data_ptr(), bytes);
      for (std::int64_t row = 1; row < rows.size(0); ++row)
        sum.reduce(sum.memory, bytes_of(rows) + static_cast<std::size_t>(row) * bytes, bytes);
    });
    return start(std::move(made));
  }
  // A reduce-scatter, in place, and an all-gather of its results.
  std::vector<at::Tensor> shards;
  const std::int64_t each = (flat.numel() + size() - 1) / size();
  for (int rank = 0; rank < size(); ++rank) {
    const std::int64_t begin = std::min(each * rank, flat.numel());
    shards.push_back(flat.narrow(0, begin, std::min(each, flat.numel() - begin)));
  }
  made->then([shards, n = size(), me = rank_](Collective& run) {
    for (int step = 1; step < n; ++step)
      run.send(0, (me + step) % n, shards[static_cast<std::size_t>((me + step) % n)]);
  });
  const at::Tensor own = shards[static_cast<std::size_t>(rank_)];
  const at::Tensor sum = rank_ < 2 ? own : at::empty_like(own);
  reduce_in_order(*made, sum, own, op);
  made->then([shards, sum, own, n = size(), me = rank_](Collective& run) {
    if (sum.data_ptr() != own.data_ptr()) std::memcpy(own.data_ptr(), sum.data_ptr(), own.nbytes());
    for (int step = 1; step < n; ++step) {
      const int to = (me + step) % n, from = (me + n - step) % n;
      run.send(1, to, own);
      run.receive(1, from, shards[static_cast<std::size_t>(from)]);
    }
  });
  return start(std::move(made));
}

RequestPtr Channel::barrier() {
  auto made = collective();
  const at::Tensor nothing = at::empty({0}, at::kByte);
  for (int distance = 1, round = 0; distance < size(); distance *= 2, ++round) {
    made->then([nothing, distance, round, n = size(), me = rank_](Collective& run) {
      run.send(round, (me + distance) % n, nothing);
      run.receive(round, (me + n - distance) % n, nothing);
    });
  }
  return start(std::move(made));
}

}  // namespace penstock::comm::shm
