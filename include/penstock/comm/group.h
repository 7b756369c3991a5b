// A group of ranks that communicate over one transport. Every rank of the group must call collectives in the
// same order; sends and receives are matched by peer and tag. Tensors may be on the CPU or on the device of
// the rank (docs/backends.md).
#pragma once

#include <penstock/base/ids.h>
#include <penstock/comm/work.h>
#include <penstock/schedule/send_mode.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace c10 {
struct IValue;
}

namespace penstock::comm {

//! How a collective combines the tensors of the ranks.
enum class ReduceOp { Sum, Avg, Product, Min, Max };

//! The position of a rank in a group, from 0 to size()-1, as in c10d. It differs from the world rank (`Rank`,
//! see World::rank) unless the group is the world. `Group::global_rank` converts it.
using GroupRank = int;

//! A thin handle, like a shared pointer: copies refer to the same group, and `const` protects the handle, not
//! the group. Only `fail`, which changes the state of the whole world, is not `const`.
class Group {
 public:
  struct Impl;

  //! The position of this rank in the group. Its world rank is `global_rank(rank())`.
  GroupRank rank() const;
  //! The number of ranks in the group.
  int size() const;
  const std::string& name() const;
  //! Returns the name of the backend: `gloo`, `threads`, `nccl`, …
  std::string backend() const;
  //! When a send completes on this group's transport. A Program for the group must have been
  //! validated for this mode.
  schedule::SendMode send_mode() const;
  //! Returns the world rank of the member at this position.
  Rank global_rank(GroupRank member) const;

  //! Splits the group into one group per color. Members are ordered by key, then by their rank in this group.
  //! A rank without a color joins no group and gets nullopt. Every rank of this group must call it.
  std::optional<Group> split(std::optional<int> color, int key = 0) const;
  //! Returns the group of the given members, or nullopt if this rank is not one of them. Every rank of this
  //! group must call it with the same list.
  std::optional<Group> subgroup(const std::vector<GroupRank>& members) const;

  // Point to point. The transport buffers sends if it can. Messages match by (peer, tag), in order; with
  // ordered sends (`send_mode`), messages of device tensors match by peer only.
  //! Sends the tensor and waits until the send completes (see `send_mode`).
  void send(const at::Tensor& tensor, GroupRank to, int tag = 0) const { isend(tensor, to, tag).wait(); }
  //! Receives into `tensor` (see `irecv`) and waits.
  void recv(const at::Tensor& tensor, GroupRank from, int tag = 0) const { irecv(tensor, from, tag).wait(); }
  //! Starts a send. The handle may be dropped: the transport keeps the tensor until the send completes.
  Work isend(const at::Tensor& tensor, GroupRank to, int tag = 0) const;
  //! Receives into `tensor`, which must be contiguous and have as many bytes as the sent tensor.
  [[nodiscard]] Work irecv(const at::Tensor& tensor, GroupRank from, int tag = 0) const;

  // Collectives. The `i` variants return immediately; do not touch the tensors until the work is done.
  //! Overwrites the tensor on every rank with that of `root`.
  void broadcast(const at::Tensor& tensor, GroupRank root) const { ibroadcast(tensor, root).wait(); }
  //! Overwrites the tensor on every rank with the reduction over all ranks.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::Sum) const {
    iall_reduce(tensor, op).wait();
  }
  //! Returns the tensors of all ranks in rank order. All must have the same shape.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) const;
  //! Gathers into one tensor with size() times the elements of `input`.
  void all_gather_into(const at::Tensor& output, const at::Tensor& input) const {
    iall_gather_into(output, input).wait();
  }
  //! Reduces `input` and leaves each rank one of size() equal shards of the result.
  void reduce_scatter_into(const at::Tensor& output, const at::Tensor& input,
                           ReduceOp op = ReduceOp::Sum) const {
    ireduce_scatter_into(output, input, op).wait();
  }
  //! Sends consecutive rows of `input` to the ranks, `input_rows[r]` of them to rank r, and receives
  //! `output_rows[r]` rows from rank r. An empty list splits the rows evenly.
  void all_to_all(const at::Tensor& output, const at::Tensor& input,
                  std::vector<std::int64_t> output_rows = {},
                  std::vector<std::int64_t> input_rows = {}) const {
    iall_to_all(output, input, std::move(output_rows), std::move(input_rows)).wait();
  }
  //! Waits until every rank of the group has called it.
  void barrier() const;

  [[nodiscard]] Work ibroadcast(const at::Tensor& tensor, GroupRank root) const;
  [[nodiscard]] Work iall_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::Sum) const;
  [[nodiscard]] Work iall_gather_into(const at::Tensor& output, const at::Tensor& input) const;
  [[nodiscard]] Work ireduce_scatter_into(const at::Tensor& output, const at::Tensor& input,
                                          ReduceOp op = ReduceOp::Sum) const;
  [[nodiscard]] Work iall_to_all(const at::Tensor& output, const at::Tensor& input,
                                 std::vector<std::int64_t> output_rows = {},
                                 std::vector<std::int64_t> input_rows = {}) const;

  // Trees of values (tensors, scalars, strings, lists, tuples, dicts), sent in serialized form.
  //! Sends a tree; the peer calls `recv_object` with the same tag.
  void send_object(const c10::IValue& object, GroupRank to, int tag = 0) const;
  c10::IValue recv_object(GroupRank from, int tag = 0) const;
  //! Returns the tree of `root` on every rank; `object` is ignored on the others.
  c10::IValue broadcast_object(const c10::IValue& object, GroupRank root) const;
  //! Returns the trees of all ranks in rank order.
  std::vector<c10::IValue> all_gather_object(const c10::IValue& object) const;

  //! Throws PeerFailed if a rank of the world is known to have failed.
  void check() const;
  //! Reports to every other rank of the world that this rank failed, with the cause.
  void fail(const std::string& cause);

  //! Whether both are handles of the same group.
  friend bool operator==(const Group& a, const Group& b) { return a.impl_ == b.impl_; }

 private:
  friend struct Access;
  explicit Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<Impl> impl_;
};

}  // namespace penstock::comm
