// The steps of a redistribution. If several axes shard a dim, they shard it in mesh order. An axis can
// therefore change only while no later axis shards the same dims.
#include "tensor/layout/redistribute.h"

#include <penstock/base/error.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <queue>

namespace penstock::tensor {
namespace {

thread_local Traffic counted_on_thread;

// Several threads work on a device.
struct DeviceTraffic {
  std::mutex mutex;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Traffic> of;
};

DeviceTraffic& device_traffic() {
  static DeviceTraffic all;
  return all;
}

//! Counts a collective of tensors on this device.
void count(const at::Tensor& tensor, std::int64_t Traffic::*kind, std::int64_t bytes) {
  const auto add = [&](Traffic& traffic) {
    ++(traffic.*kind);
    traffic.bytes += bytes;
  };
  if (tensor.is_cpu() || tensor.is_meta()) return add(counted_on_thread);
  DeviceTraffic& all = device_traffic();
  const std::lock_guard lock(all.mutex);
  add(all.of[{tensor.device().type(), tensor.device().index()}]);
}

//! The counters of the current device; null if nothing was counted on it. The caller holds the mutex.
Traffic* traffic_of_current_device(DeviceTraffic& all) {
  for (auto& [device, traffic] : all.of) {
    if (c10::impl::VirtualGuardImpl(device.first).getDevice().index() == device.second) return &traffic;
  }
  return nullptr;
}

struct Axis {
  const comm::Group& group;
  std::int64_t n, me;
};

at::Tensor padded(const at::Tensor& t, std::int64_t dim, std::int64_t size) {
  if (t.size(dim) == size) return t.contiguous();
  Sizes sizes(t.sizes().begin(), t.sizes().end());
  sizes[static_cast<std::size_t>(dim)] = size;
  at::Tensor result = at::zeros(sizes, t.options());
  result.narrow(dim, 0, t.size(dim)).copy_(t);
  return result;
}

std::int64_t bytes_of(const at::Tensor& t) {
  return static_cast<std::int64_t>(t.nbytes());
}

//! Backends do not support bool.
at::Tensor as_bytes(const at::Tensor& t) {
  return t.scalar_type() == at::kBool ? t.view(at::kByte) : t;
}
at::Tensor as_type(const at::Tensor& t, at::ScalarType type) {
  return type == at::kBool ? t.view(at::kBool) : t;
}

LocalShard gather(const at::Tensor& local, const Axis& axis, std::int64_t dim, std::int64_t size) {
  const std::int64_t each = (size + axis.n - 1) / axis.n;
  const at::Tensor sent = as_bytes(padded(local, dim, each));
  Sizes sizes{axis.n};
  sizes.append(sent.sizes().begin(), sent.sizes().end());
  const at::Tensor all = at::empty(sizes, sent.options());
  count(sent, &Traffic::all_gathers, (axis.n - 1) * bytes_of(sent));
  auto work = axis.group.iall_gather_into(all, sent);
  const auto finish = [all, sent, dim, size, n = axis.n, type = local.scalar_type()] {
    if (dim == 0 && size % n == 0) return as_type(all.flatten(0, 1), type);
    std::vector<at::Tensor> parts = all.unbind(0);
    for (std::int64_t r = 0; r < n; ++r) {
      auto& part = parts[static_cast<std::size_t>(r)];
      part = part.narrow(dim, 0, chunk(size, n, r).size);
    }
    return as_type(at::cat(parts, dim), type);
  };
  return {{}, std::make_shared<PendingLocal>(std::move(work), finish)};
}

LocalShard all_reduce(const at::Tensor& local, const Axis& axis, comm::ReduceOp op) {
  at::Tensor sum = local.clone(at::MemoryFormat::Contiguous);
  count(sum, &Traffic::all_reduces, 2 * (axis.n - 1) * bytes_of(sum) / axis.n);
  auto work = axis.group.iall_reduce(sum, op);
  return {{}, std::make_shared<PendingLocal>(std::move(work), [sum] { return sum; })};
}

LocalShard reduce_scatter(const at::Tensor& local, const Axis& axis, std::int64_t dim, std::int64_t size,
                          comm::ReduceOp op) {
  const std::int64_t each = (size + axis.n - 1) / axis.n;
  at::Tensor input;
  if (dim == 0 && size % axis.n == 0) {
    input = local.contiguous();
  } else {
    std::vector<at::Tensor> parts;
    for (std::int64_t r = 0; r < axis.n; ++r) {
      const Interval part = chunk(size, axis.n, r);
      parts.push_back(padded(local.narrow(dim, part.start, part.size), dim, each).unsqueeze(0));
    }
    input = at::cat(parts, 0);
  }
  Sizes sizes(local.sizes().begin(), local.sizes().end());
  sizes[static_cast<std::size_t>(dim)] = each;
  const at::Tensor output = at::empty(sizes, local.options());
  count(output, &Traffic::reduce_scatters, (axis.n - 1) * bytes_of(output));
  auto work = axis.group.ireduce_scatter_into(output, input, op);
  const std::int64_t local_size = chunk(size, axis.n, axis.me).size;
  const auto finish = [output, input, dim, local_size, each] {
    return local_size == each ? output : output.narrow(dim, 0, local_size).contiguous();
  };
  return {{}, std::make_shared<PendingLocal>(std::move(work), finish)};
}

//! All-to-all from shards along `dim` (of `size`) to shards along `to` (of `to_size`).
LocalShard exchange(const at::Tensor& local, const Axis& axis, std::int64_t dim, std::int64_t size,
                    std::int64_t to, std::int64_t to_size) {
  std::vector<at::Tensor> sent;
  std::vector<std::int64_t> in_rows, out_rows;
  const at::Tensor source = as_bytes(local);
  Sizes shape(local.sizes().begin(), local.sizes().end());
  shape[static_cast<std::size_t>(to)] = chunk(to_size, axis.n, axis.me).size;
  std::vector<Sizes> shapes;
  for (std::int64_t r = 0; r < axis.n; ++r) {
    const Interval part = chunk(to_size, axis.n, r);
    sent.push_back(source.narrow(to, part.start, part.size).reshape({-1}));
    in_rows.push_back(sent.back().numel());
    shape[static_cast<std::size_t>(dim)] = chunk(size, axis.n, r).size;
    shapes.push_back(shape);
    out_rows.push_back(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
  }
  const at::Tensor input = at::cat(sent, 0);
  const at::Tensor output =
      at::empty({std::accumulate(out_rows.begin(), out_rows.end(), std::int64_t{0})}, source.options());
  count(input, &Traffic::all_to_alls, bytes_of(input) - bytes_of(sent[static_cast<std::size_t>(axis.me)]));
  auto work = axis.group.iall_to_all(output, input, out_rows, in_rows);
  const auto finish = [output, input, out_rows, shapes, dim, type = local.scalar_type()] {
    std::vector<at::Tensor> parts = output.split_with_sizes(out_rows);
    for (std::size_t r = 0; r < parts.size(); ++r) parts[r] = parts[r].view(shapes[r]);
    return as_type(at::cat(parts, dim), type);
  };
  return {{}, std::make_shared<PendingLocal>(std::move(work), finish)};
}

at::Tensor slice(const at::Tensor& local, const Axis& axis, std::int64_t dim) {
  const Interval part = chunk(local.size(dim), axis.n, axis.me);
  return local.narrow(dim, part.start, part.size).clone(at::MemoryFormat::Contiguous);
}

at::Tensor to_partial(const at::Tensor& local, const Axis& axis, comm::ReduceOp op) {
  switch (op) {
    case comm::ReduceOp::Sum:
      return axis.me == 0 ? local.clone() : at::zeros_like(local);
    case comm::ReduceOp::Avg:
    case comm::ReduceOp::Min:
    case comm::ReduceOp::Max:
      return local.clone();
    case comm::ReduceOp::Product:
      break;
  }
  throw UsageError("a replicated tensor cannot be redistributed to " + to_string(AxisPlacement(Partial(op))));
}

LocalShard step(LocalShard shard, c10::IntArrayRef sizes, const DeviceMesh::Impl& mesh, const Placements& at,
                std::size_t index, const AxisPlacement& to) {
  const Axis axis{mesh.groups[index], mesh.shape[index], mesh.coordinate[index]};
  const AxisPlacement& from = at[index];
  const auto size_here = [&](std::int64_t dim) {
    return interval_of(sizes[static_cast<std::size_t>(dim)], dim, at, mesh, static_cast<int>(index)).size;
  };
  // Backends copy memory, so a lazy conjugate or negation must be materialized.
  const at::Tensor local = shard.get().resolve_conj().resolve_neg();
  switch (from.kind()) {
    case AxisPlacement::Kind::Replicate:
      if (to.is_shard()) return {slice(local, axis, to.dim()), nullptr};
      return {to_partial(local, axis, to.reduce()), nullptr};
    case AxisPlacement::Kind::Shard:
      if (to.is_replicate()) return gather(local, axis, from.dim(), size_here(from.dim()));
      return exchange(local, axis, from.dim(), size_here(from.dim()), to.dim(), size_here(to.dim()));
    case AxisPlacement::Kind::Partial:
      if (to.is_replicate()) return all_reduce(local, axis, from.reduce());
      return reduce_scatter(local, axis, to.dim(), size_here(to.dim()), from.reduce());
  }
  return shard;
}

//! Whether an axis may change while the others keep their placements.
bool may_step(const Placements& at, std::size_t index, const AxisPlacement& to) {
  for (std::size_t later = index + 1; later < at.size(); ++later) {
    if (!at[later].is_shard()) continue;
    if (at[index].is_shard(at[later].dim()) || to.is_shard(at[later].dim())) return false;
  }
  return true;
}

double step_cost(c10::IntArrayRef sizes, const DeviceMesh::Impl& mesh, const Placements& at,
                 std::size_t index, const AxisPlacement& to) {
  Placements gathered = at;
  gathered[index] = tensor::Replicate();
  double elements = 1;
  for (const std::int64_t size : local_sizes(sizes, gathered, mesh)) elements *= static_cast<double>(size);
  const double bytes = move_bytes(at[index], to, elements, mesh.shape[index]);
  return bytes < 0 ? -1 : bytes + (bytes > 0 ? 1 : 1e-3);  // prefer fewer steps at equal cost
}

std::vector<int> key_of(const Placements& placements) {
  std::vector<int> key;
  for (const AxisPlacement& p : placements) {
    key.push_back(static_cast<int>(p.kind()));
    key.push_back(static_cast<int>(p.dim()));
    key.push_back(static_cast<int>(p.reduce()));
  }
  return key;
}

}  // namespace

Traffic traffic() {
  Traffic sum = counted_on_thread;
  DeviceTraffic& all = device_traffic();
  const std::lock_guard lock(all.mutex);
  if (const Traffic* const device = traffic_of_current_device(all)) {
    for (const auto kind : {&Traffic::all_reduces, &Traffic::all_gathers, &Traffic::reduce_scatters,
                            &Traffic::all_to_alls, &Traffic::bytes})
      sum.*kind += device->*kind;
  }
  return sum;
}

void reset_traffic() {
  counted_on_thread = {};
  DeviceTraffic& all = device_traffic();
  const std::lock_guard lock(all.mutex);
  if (Traffic* const device = traffic_of_current_device(all)) *device = {};
}

void reduce_over(const at::Tensor& tensor, const DeviceMesh::Impl& mesh, int axis, comm::ReduceOp op) {
  const auto index = static_cast<std::size_t>(axis);
  count(tensor, &Traffic::all_reduces, 2 * (mesh.shape[index] - 1) * bytes_of(tensor) / mesh.shape[index]);
  mesh.groups[index].all_reduce(tensor, op);
}

std::vector<Placements> find_path(c10::IntArrayRef sizes, const DeviceMesh::Impl& mesh,
                                  const Placements& from, const Placements& to) {
  if (from == to) return {};
  if (from.size() == 1 && move_bytes(from[0], to[0], 1, mesh.shape[0]) >= 0) return {to};
  struct Seen {
    double cost;
    Placements at, before;
  };
  // Costs must be equal on all ranks even if shards are uneven: use those of the rank at the origin.
  DeviceMesh::Impl origin;
  origin.shape = mesh.shape;
  origin.coordinate.assign(mesh.shape.size(), 0);
  std::map<std::vector<int>, Seen> seen;
  using Item = std::pair<double, std::vector<int>>;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
  seen.insert({key_of(from), {0, from, from}});
  queue.push({0, key_of(from)});
  while (!queue.empty()) {
    const auto [cost, key] = queue.top();
    queue.pop();
    const Seen here = seen.at(key);
    if (cost > here.cost) continue;
    if (here.at == to) break;
    for (std::size_t axis = 0; axis < from.size(); ++axis) {
      // If an axis blocks another one, the cheapest path may shard along a dim that neither layout uses.
      c10::SmallVector<AxisPlacement, 8> targets{tensor::Replicate(), to[axis]};
      for (std::size_t dim = 0; dim < sizes.size(); ++dim) targets.emplace_back(Shard(static_cast<int>(dim)));
      for (const AxisPlacement& target : targets) {
        if (target == here.at[axis] || !may_step(here.at, axis, target)) continue;
        const double bytes = step_cost(sizes, origin, here.at, axis, target);
        if (bytes < 0) continue;
        Placements next = here.at;
        next[axis] = target;
        const auto next_key = key_of(next);
        const auto found = seen.find(next_key);
        if (found != seen.end() && found->second.cost <= cost + bytes) continue;
        seen.insert_or_assign(next_key, Seen{cost + bytes, next, here.at});
        queue.push({cost + bytes, next_key});
      }
    }
  }
  std::vector<Placements> path;
  for (Placements at = to; !(at == from); at = seen.at(key_of(at)).before) path.push_back(at);
  std::reverse(path.begin(), path.end());
  return path;
}

LocalShard move(LocalShard shard, c10::IntArrayRef sizes, const MeshPtr& mesh, const Placements& from,
                const Placements& to) {
  Placements at = from;
  for (const Placements& next : find_path(sizes, *mesh, from, to)) {
    for (std::size_t axis = 0; axis < at.size(); ++axis) {
      if (at[axis] == next[axis]) continue;
      if (mesh->shape[axis] > 1) shard = step(std::move(shard), sizes, *mesh, at, axis, next[axis]);
    }
    at = next;
  }
  return shard;
}

}  // namespace penstock::tensor
