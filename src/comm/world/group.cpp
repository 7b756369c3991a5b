// The operations of a group: each checks its arguments and is issued to the c10d backend.
#include "base/text.h"
#include "comm/world/access.h"
#include "comm/world/group_impl.h"
#include "comm/world/issue.h"

#include <penstock/comm/group.h>

#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace penstock::comm {
namespace {

c10d::ReduceOp to_c10d(ReduceOp op, const Route& route) {
  switch (op) {
    case ReduceOp::Sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::Avg:
      return route.transport->averages() ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;  // then divided
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

//! Returns a complex tensor as a view of real pairs, because Gloo's collectives and NCCL do not support
//! complex dtypes.
at::Tensor as_reals(const at::Tensor& tensor) {
  if (tensor.is_complex()) return at::view_as_real(tensor.detach());
  return tensor.requires_grad() ? tensor.detach() : tensor;
}

//! Returns a tensor whose memory holds its values in order.
at::Tensor as_memory(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  return tensor.resolve_conj().resolve_neg().contiguous();
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
  auto work = issue(group, Operation::collective("reduce_scatter", input), [&](Issue& issued) {
    at::Tensor to = issued.staging.output(parts);
    at::Tensor from = issued.staging.input(input.detach().view({n, -1}));
    std::vector<std::int64_t> even;
    return issued.backend.alltoall_base(to, from, even, even, c10d::AllToAllOptions());
  });
  work.then([output, parts, op] { output.detach().view({-1}).copy_(reduce_rows(parts, op)); });
  return work;
}

}  // namespace

int Group::rank() const {
  return impl_->rank;
}
schedule::SendMode Group::send_mode() const {
  return impl_->main.transport->send_mode();
}
int Group::size() const {
  return static_cast<int>(impl_->members.size());
}
const std::string& Group::name() const {
  return impl_->name;
}
std::string Group::backend() const {
  return impl_->main.backend->getBackendName();
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
  return Access::group(make_group(child, std::move(members), me, impl_->main.transport, impl_->generation));
}

Group duplicate(const Group& group, GroupUse use) {
  Group::Impl& impl = *Access::impl(group);
  const std::string child = str_cat(impl.name, "/", impl.splits++, ".0");
  return Access::group(make_group(child, impl.members, impl.rank, impl.main.transport, impl.generation, use));
}

std::optional<Group> Group::subgroup(const std::vector<int>& members) const {
  for (const int member : members) check_member(*impl_, member, "subgroup");
  const auto found = std::find(members.begin(), members.end(), rank());
  const std::optional<int> color = found == members.end() ? std::nullopt : std::optional(0);
  return split(color, static_cast<int>(found - members.begin()));
}

Work Group::isend(const at::Tensor& tensor, int to, int tag) const {
  check_member(*impl_, to, "send");
  const at::Tensor contiguous = as_memory(tensor);
  Work work = issue(impl_, Operation::point_to_point("send", contiguous, to, tag), [&](Issue& issued) {
    std::vector<at::Tensor> tensors{issued.staging.input(as_reals(contiguous))};
    auto sent = issued.backend.send(tensors, to, tag);
    issued.kept = issued.route.transport->keeps_send(*sent);
    return sent;
  });
  if (impl_->route_of(contiguous).transport->has_own_thread() && contiguous.nbytes() <= kSmall)
    yield_to_receiver();
  return work;
}

Work Group::irecv(const at::Tensor& tensor, int from, int tag) const {
  check_member(*impl_, from, "recv");
  check_contiguous(*impl_, tensor, "recv");
  return issue(impl_, Operation::point_to_point("recv", tensor, from, tag), [&](Issue& issued) {
    std::vector<at::Tensor> tensors{issued.staging.output(as_reals(tensor))};
    if (issued.route.transport->has_own_thread()) issued.arrival = ArrivalMark(tensors[0]);
    return issued.backend.recv(tensors, from, tag);
  });
}

Work Group::ibroadcast(const at::Tensor& tensor, int root) const {
  check_member(*impl_, root, "broadcast");
  check_contiguous(*impl_, tensor, "broadcast");
  return issue(impl_, Operation::collective("broadcast", tensor, root), [&](Issue& issued) {
    std::vector<at::Tensor> tensors{issued.staging.in_out(as_reals(tensor))};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return issued.backend.broadcast(tensors, options);
  });
}

Work Group::iall_reduce(const at::Tensor& tensor, ReduceOp op) const {
  check_contiguous(*impl_, tensor, "all_reduce");
  check_reduction(*impl_, tensor, op, "all_reduce");
  auto work = issue(impl_, Operation::collective("all_reduce", tensor), [&](Issue& issued) {
    std::vector<at::Tensor> tensors{issued.staging.in_out(as_reals(tensor))};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op, issued.route);
    return issued.backend.allreduce(tensors, options);
  });
  if (op == ReduceOp::Avg && !impl_->route_of(tensor).transport->averages())
    work.then([tensor, n = size()] { tensor.detach().div_(n); });
  return work;
}

std::vector<at::Tensor> Group::all_gather(const at::Tensor& tensor) const {
  const at::Tensor input = as_memory(tensor);
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
  return issue(impl_, Operation::collective("all_gather", output), [&](Issue& issued) {
    at::Tensor to = issued.staging.output(as_reals(output).view({-1}));
    at::Tensor from = issued.staging.input(as_reals(input).view({-1}));
    return issued.backend._allgather_base(to, from, c10d::AllgatherOptions());
  });
}

Work Group::ireduce_scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const {
  check_contiguous(*impl_, output, "reduce_scatter");
  check_contiguous(*impl_, input, "reduce_scatter");
  check_reduction(*impl_, input, op, "reduce_scatter");
  check_elements(*impl_, "reduce_scatter", input, output);
  const Transport& transport = *impl_->route_of(input).transport;
  if (!transport.scatters_reductions(impl_->members))
    return reduce_scatter_by_exchange(impl_, as_reals(output), as_reals(input), op);
  auto work = issue(impl_, Operation::collective("reduce_scatter", input), [&](Issue& issued) {
    at::Tensor to = issued.staging.output(as_reals(output).view({-1}));
    at::Tensor from = issued.staging.input(as_reals(input).view({-1}));
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op, issued.route);
    return issued.backend._reduce_scatter_base(to, from, options);
  });
  if (op == ReduceOp::Avg && !transport.averages())
    work.then([output, n = size()] { output.detach().div_(n); });
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
  return issue(impl_, Operation::collective("all_to_all", input), [&](Issue& issued) {
    at::Tensor to = issued.staging.output(as_reals(output));
    at::Tensor from = issued.staging.input(as_reals(input));
    return issued.backend.alltoall_base(to, from, output_rows, input_rows, c10d::AllToAllOptions());
  });
}

void Group::barrier() const {
  issue(impl_, Operation::collective("barrier", at::Tensor()), [](Issue& issued) {
    return issued.backend.barrier(c10d::BarrierOptions());
  }).wait();
}

}  // namespace penstock::comm
