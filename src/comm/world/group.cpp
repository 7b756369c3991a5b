// The operations of a group: each checks for known failures, is recorded, and is issued to the c10d backend.
#include "base/text.h"
#include "comm/world/access.h"
#include "comm/world/group_impl.h"
#include "comm/world/work_impl.h"

#include <penstock/comm/group.h>

#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace penstock::comm {
namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::Avg:
      return c10d::ReduceOp::SUM;  // divided afterwards: Gloo has no AVG
    case ReduceOp::Product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::Min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::Max:
      return c10d::ReduceOp::MAX;
  }
  return c10d::ReduceOp::SUM;
}

void check_member(const Group::Impl& group, int member, const char* op) {
  const int size = static_cast<int>(group.members.size());
  if (member >= 0 && member < size) return;
  throw UsageError(
      str_cat(op, ": group ", group.name, " has no position ", member, ": it has ", counted(size, "rank")),
      {.rank = group.generation->rank, .op = op},
      str_cat("pass a position in the group, 0 to ", size - 1, ", not a world rank"));
}

void check_contiguous(const Group::Impl& group, const at::Tensor& tensor, const char* op) {
  if (tensor.defined() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return;
  throw UsageError(std::string(op) + " requires a contiguous tensor that is not a lazy conjugate or negative",
                   {.rank = group.generation->rank, .op = op},
                   "call .resolve_conj().resolve_neg().contiguous() first, or pass a new buffer");
}

//! Returns a complex tensor as a view of real pairs, because Gloo's collectives do not support complex
//! dtypes.
at::Tensor as_reals(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor.detach();
}

void check_reduction(const Group::Impl& group, const at::Tensor& tensor, ReduceOp op, const char* name) {
  if (!tensor.is_complex() || op == ReduceOp::Sum || op == ReduceOp::Avg) return;
  throw UsageError(std::string(name) + " of a complex tensor supports only Sum and Avg",
                   {.rank = group.generation->rank, .op = name},
                   "gather the tensors and reduce them locally");
}

void check_elements(const Group::Impl& group, const char* op, const at::Tensor& large,
                    const at::Tensor& small) {
  const auto size = static_cast<std::int64_t>(group.members.size());
  if (large.numel() == small.numel() * size && large.scalar_type() == small.scalar_type()) return;
  throw ShapeError(str_cat(op, ": the full tensor has ", large.numel(), " elements of type ",
                           c10::toString(large.scalar_type()), ", expected ", size, " x ", small.numel(),
                           " elements of type ", c10::toString(small.scalar_type())),
                   {.rank = group.generation->rank, .op = op});
}

//! Issues one operation. `call` receives the backend and returns its work. A collective without
//! a root has no peer.
template <class Call>
Work issue(const std::shared_ptr<Group::Impl>& group, const char* op, const at::Tensor& tensor,
           std::optional<int> peer, int tag, bool collective, const Call& call, ArrivalMark arrival = {}) {
  const auto state = std::make_shared<Work::Impl>();
  state->arrival = arrival;
  state->generation = group->generation;
  state->group = group;
  state->record.op = op;
  state->record.group = group->name;
  state->record.peer = peer;
  state->record.tag = tag;
  state->record.bytes = tensor.defined() ? tensor.nbytes() : 0;
  if (collective) state->record.sequence = ++group->collectives;
  if (peer && !collective) {
    state->peer = Rank(group->members[static_cast<std::size_t>(*peer)]);
    state->peer_text = str_cat("rank ", state->peer->value);
  } else {
    state->peer_text = "the other ranks of the group";
  }
  const ErrorContext context{.rank = group->generation->rank, .op = op};
  group->generation->failure.throw_if_failed(context);
  state->record.number = group->generation->recorder.start(state->record);
  try {
    state->work = call(*group->backend);
  } catch (const c10::Error& e) {
    group->generation->recorder.finish(state->record.number, true);
    group->generation->failure.throw_if_failed(context);
    throw CommError(e.what_without_backtrace(), context);
  } catch (const std::exception& e) {
    // Gloo rejects work on a connection that is already broken; the monitor reports which rank failed.
    group->generation->recorder.finish(state->record.number, true);
    group->generation->failure.wait_for_report(kVerdictTime);
    group->generation->report_departed(state->others(), op);
    group->generation->recorder.dump("failure");
    if (!group->generation->failure.failed() && state->peer)
      throw PeerFailed(*state->peer, e.what(), context);
    group->generation->failure.throw_if_failed(context);
    throw CommError(e.what(), context);
  }
  if (collective && group->transport->collectives_have_futures()) state->future = state->work->getFuture();
  return Access::work(state);
}

// Bytes of a message that transfers in less than the time slice of a thread.
constexpr std::size_t kSmall = 64U << 10U;

at::Tensor reduce_rows(const at::Tensor& rows, ReduceOp op) {
  at::Tensor result = rows[0].clone();
  for (std::int64_t row = 1; row < rows.size(0); ++row) {
    switch (op) {
      case ReduceOp::Sum:
      case ReduceOp::Avg:
        result.add_(rows[row]);
        break;
      case ReduceOp::Product:
        result.mul_(rows[row]);
        break;
      case ReduceOp::Min:
        result = at::minimum(result, rows[row]);
        break;
      case ReduceOp::Max:
        result = at::maximum(result, rows[row]);
        break;
    }
  }
  if (op == ReduceOp::Avg) result.div_(rows.size(0));
  return result;
}

//! Gloo implements reduce-scatter as an all-reduce whose progress cannot be observed. Exchanging the shards
//! and reducing them locally, in rank order, takes half the time (docs/backends.md).
Work reduce_scatter_by_exchange(const std::shared_ptr<Group::Impl>& group, const at::Tensor& output,
                                const at::Tensor& input, ReduceOp op) {
  const auto n = static_cast<std::int64_t>(group->members.size());
  const at::Tensor parts = at::empty({n, output.numel()}, input.options());
  auto work = issue(group, "reduce_scatter", input, std::nullopt, 0, true, [&](c10d::Backend& backend) {
    at::Tensor to = parts;
    at::Tensor from = input.detach().view({n, -1});
    std::vector<std::int64_t> even;
    return backend.alltoall_base(to, from, even, even, c10d::AllToAllOptions());
  });
  work.then([output, parts, op] { output.detach().view({-1}).copy_(reduce_rows(parts, op)); });
  return work;
}

}  // namespace

Group::Impl::~Impl() {
  if (!backend || !generation->failure.failed() || transport->can_close_after_failure()) return;
  // A failed Gloo group cannot be aborted, and its destructor waits for its threads: leak it.
  [[maybe_unused]] auto* abandoned = backend.release();
}

std::shared_ptr<Group::Impl> make_group(std::string name, std::vector<int> members, int rank,
                                        std::shared_ptr<Transport> transport,
                                        std::shared_ptr<WorldGeneration> generation) {
  auto state = std::make_shared<Group::Impl>();
  try {
    state->backend = transport->connect(*generation, name, members, rank);
  } catch (const c10::Error& e) {
    generation->failure.raise_for(e, {.rank = generation->rank, .op = "connect " + name});
  }
  state->name = std::move(name);
  state->rank = rank;
  state->members = std::move(members);
  state->transport = std::move(transport);
  state->generation = std::move(generation);
  return state;
}

int Group::rank() const {
  return impl_->rank;
}
schedule::SendMode Group::send_mode() const {
  return impl_->transport->send_mode();
}
int Group::size() const {
  return static_cast<int>(impl_->members.size());
}
const std::string& Group::name() const {
  return impl_->name;
}
std::string Group::backend() const {
  return impl_->backend->getBackendName();
}
void Group::check() const {
  impl_->generation->failure.throw_if_failed({.rank = impl_->generation->rank});
}

void Group::fail(const std::string& cause) {
  WorldGeneration& generation = *impl_->generation;
  if (generation.failure.failed()) return;  // the other ranks already know of an earlier failure
  generation.recorder.dump("failure");
  const Failure failure{generation.rank, cause};
  if (generation.publish) generation.publish(failure);
  generation.failure.report(failure);
}

Rank Group::global_rank(int member) const {
  check_member(*impl_, member, "global_rank");
  return Rank(impl_->members[static_cast<std::size_t>(member)]);
}

std::optional<Group> Group::split(std::optional<int> color, int key) const {
  constexpr std::int64_t no_color = std::numeric_limits<std::int64_t>::min();  // not the value of any int
  const std::int64_t sent = color ? std::int64_t{*color} : no_color;
  const at::Tensor local = at::tensor({sent, std::int64_t{key}}, at::kLong);
  const std::vector<at::Tensor> all = all_gather(local);
  std::vector<std::pair<std::int64_t, int>> chosen;  // (key, rank in this group)
  for (int member = 0; member < size(); ++member) {
    const auto* row = all[static_cast<std::size_t>(member)].const_data_ptr<std::int64_t>();
    if (row[0] == sent) chosen.emplace_back(row[1], member);
  }
  const int number = impl_->splits++;
  if (!color) return std::nullopt;
  std::sort(chosen.begin(), chosen.end());
  std::vector<int> members;
  int me = 0;
  for (const auto& [_, member] : chosen) {
    if (member == rank()) me = static_cast<int>(members.size());
    members.push_back(impl_->members[static_cast<std::size_t>(member)]);
  }
  const std::string child = str_cat(name(), "/", number, ".", *color);
  return Access::group(make_group(child, std::move(members), me, impl_->transport, impl_->generation));
}

std::optional<Group> Group::subgroup(const std::vector<int>& members) const {
  for (const int member : members) check_member(*impl_, member, "subgroup");
  const auto found = std::find(members.begin(), members.end(), rank());
  const std::optional<int> color = found == members.end() ? std::nullopt : std::optional(0);
  return split(color, static_cast<int>(found - members.begin()));
}

Work Group::isend(const at::Tensor& tensor, int to, int tag) const {
  check_member(*impl_, to, "send");
  const at::Tensor contiguous = tensor.resolve_conj().resolve_neg().contiguous();  // sent as raw memory
  Work work = issue(impl_, "send", contiguous, to, tag, false, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{contiguous};
    return backend.send(tensors, to, tag);
  });
  if (impl_->transport->has_own_thread() && contiguous.nbytes() <= kSmall) yield_to_receiver();
  return work;
}

Work Group::irecv(const at::Tensor& tensor, int from, int tag) const {
  check_member(*impl_, from, "recv");
  check_contiguous(*impl_, tensor, "recv");
  const ArrivalMark arrival = impl_->transport->has_own_thread() ? ArrivalMark(tensor) : ArrivalMark();
  return issue(
      impl_, "recv", tensor, from, tag, false,
      [&](c10d::Backend& backend) {
        std::vector<at::Tensor> tensors{tensor};
        return backend.recv(tensors, from, tag);
      },
      arrival);
}

Work Group::ibroadcast(const at::Tensor& tensor, int root) const {
  check_member(*impl_, root, "broadcast");
  check_contiguous(*impl_, tensor, "broadcast");
  return issue(impl_, "broadcast", tensor, root, 0, true, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{as_reals(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend.broadcast(tensors, options);
  });
}

Work Group::iall_reduce(const at::Tensor& tensor, ReduceOp op) const {
  check_contiguous(*impl_, tensor, "all_reduce");
  check_reduction(*impl_, tensor, op, "all_reduce");
  auto work = issue(impl_, "all_reduce", tensor, std::nullopt, 0, true, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{as_reals(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op);
    return backend.allreduce(tensors, options);
  });
  if (op == ReduceOp::Avg) work.then([tensor, n = size()] { tensor.detach().div_(n); });
  return work;
}

std::vector<at::Tensor> Group::all_gather(const at::Tensor& tensor) const {
  const at::Tensor input = tensor.resolve_conj().resolve_neg().contiguous();
  std::vector<std::int64_t> shape{size()};
  shape.insert(shape.end(), input.sizes().begin(), input.sizes().end());
  const at::Tensor output = at::empty(shape, input.options());
  all_gather_into(output, input);
  return output.unbind(0);
}

Work Group::iall_gather_into(const at::Tensor& output, const at::Tensor& input) const {
  check_contiguous(*impl_, output, "all_gather");
  check_contiguous(*impl_, input, "all_gather");
  check_elements(*impl_, "all_gather", output, input);
  return issue(impl_, "all_gather", output, std::nullopt, 0, true, [&](c10d::Backend& backend) {
    at::Tensor to = as_reals(output).view({-1});
    at::Tensor from = as_reals(input).view({-1});
    return backend._allgather_base(to, from, c10d::AllgatherOptions());
  });
}

Work Group::ireduce_scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const {
  check_contiguous(*impl_, output, "reduce_scatter");
  check_contiguous(*impl_, input, "reduce_scatter");
  check_reduction(*impl_, input, op, "reduce_scatter");
  check_elements(*impl_, "reduce_scatter", input, output);
  if (impl_->transport->collectives_have_futures())
    return reduce_scatter_by_exchange(impl_, as_reals(output), as_reals(input), op);
  auto work = issue(impl_, "reduce_scatter", input, std::nullopt, 0, true, [&](c10d::Backend& backend) {
    at::Tensor to = as_reals(output).view({-1});
    at::Tensor from = as_reals(input).view({-1});
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op);
    return backend._reduce_scatter_base(to, from, options);
  });
  if (op == ReduceOp::Avg) work.then([output, n = size()] { output.detach().div_(n); });
  return work;
}

Work Group::iall_to_all(const at::Tensor& output, const at::Tensor& input,
                        std::vector<std::int64_t> output_rows, std::vector<std::int64_t> input_rows) const {
  check_contiguous(*impl_, output, "all_to_all");
  check_contiguous(*impl_, input, "all_to_all");
  const auto check_rows = [&](const at::Tensor& tensor, const std::vector<std::int64_t>& rows,
                              const char* which) {
    const std::int64_t have = tensor.dim() > 0 ? tensor.size(0) : 0;
    const bool fits = rows.empty() ? have % size() == 0
                                   : static_cast<int>(rows.size()) == size() &&
                                         std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) == have;
    if (fits) return;
    throw ShapeError(str_cat("all_to_all: the ", which, " has ", have,
                             " rows, which does not match its split over ", size(), " ranks"),
                     {.rank = impl_->generation->rank, .op = "all_to_all"});
  };
  check_rows(output, output_rows, "output");
  check_rows(input, input_rows, "input");
  return issue(impl_, "all_to_all", input, std::nullopt, 0, true, [&](c10d::Backend& backend) {
    at::Tensor to = as_reals(output);
    at::Tensor from = as_reals(input);
    return backend.alltoall_base(to, from, output_rows, input_rows, c10d::AllToAllOptions());
  });
}

void Group::barrier() const {
  issue(impl_, "barrier", at::Tensor(), std::nullopt, 0, true, [](c10d::Backend& backend) {
    return backend.barrier(c10d::BarrierOptions());
  }).wait();
}

}  // namespace penstock::comm
