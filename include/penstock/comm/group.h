// A group of ranks that talk to each other: a thin handle over one c10d backend. Ranks in these calls count within the
// group. Every rank of the group must call the collectives in the same order; sends and receives match by peer and tag.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/comm/work.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace c10 {
struct IValue;
}

namespace penstock {

enum class ReduceOp { Sum, Avg, Product, Min, Max };

struct GroupState;

class Group {
 public:
  explicit Group(std::shared_ptr<GroupState> state) : state_(std::move(state)) {}

  int rank() const;
  int size() const;
  const std::string& name() const;
  //! The backend's name: `gloo`, `threads`, `nccl`, …
  std::string backend() const;
  //! The world's rank of a member.
  Rank global_rank(int member) const;

  //! Cuts the group into one group for each colour; members are ordered by key, then by their rank here. A negative
  //! colour joins none. Every rank of this group must call it.
  std::optional<Group> split(int color, int key = 0) const;
  //! The group of the given members (the same list on every rank of this group); nothing for those left out.
  std::optional<Group> subgroup(const std::vector<int>& members) const;

  // Point to point. Sends are buffered by the transport where it can; matched by (peer, tag), in order.
  void send(const at::Tensor& tensor, int to, int tag = 0) const { isend(tensor, to, tag).wait(); }
  void recv(const at::Tensor& tensor, int from, int tag = 0) const { irecv(tensor, from, tag).wait(); }
  Work isend(const at::Tensor& tensor, int to, int tag = 0) const;
  //! Receives into `tensor`, which must be contiguous and of the sent size.
  Work irecv(const at::Tensor& tensor, int from, int tag = 0) const;

  // Collectives. The `i` forms return at once; the tensors must not be touched until the work is done.
  void broadcast(const at::Tensor& tensor, int root) const { ibroadcast(tensor, root).wait(); }
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::Sum) const { iall_reduce(tensor, op).wait(); }
  //! Everyone's tensor (all of one shape), in the order of ranks.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) const;
  //! The same into one tensor of size() times the elements.
  void all_gather_into(const at::Tensor& output, const at::Tensor& input) const {
    iall_gather_into(output, input).wait();
  }
  //! Reduces `input` and gives each rank its part of size() equal ones.
  void reduce_scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::Sum) const {
    ireduce_scatter_into(output, input, op).wait();
  }
  //! Rows of `input` go to the ranks in turn: `input_rows[r]` of them to rank r; empty lists mean equal parts.
  void all_to_all(const at::Tensor& output, const at::Tensor& input, std::vector<std::int64_t> output_rows = {},
                  std::vector<std::int64_t> input_rows = {}) const {
    iall_to_all(output, input, std::move(output_rows), std::move(input_rows)).wait();
  }
  void barrier() const;

  Work ibroadcast(const at::Tensor& tensor, int root) const;
  Work iall_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::Sum) const;
  Work iall_gather_into(const at::Tensor& output, const at::Tensor& input) const;
  Work ireduce_scatter_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::Sum) const;
  Work iall_to_all(const at::Tensor& output, const at::Tensor& input, std::vector<std::int64_t> output_rows = {},
                   std::vector<std::int64_t> input_rows = {}) const;

  // Value trees (tensors, scalars, strings, lists, tuples, dicts), serialised.
  void send_object(const c10::IValue& object, int to, int tag = 0) const;
  c10::IValue recv_object(int from, int tag = 0) const;
  c10::IValue broadcast_object(const c10::IValue& object, int root) const;
  std::vector<c10::IValue> all_gather_object(const c10::IValue& object) const;

  //! Throws PeerFailed if a rank of the world is known to have failed.
  void check() const;
  //! Tells every other rank of the world that this one has failed, and why.
  void fail(const std::string& cause) const;

  //! For the modules that hand the group to libtorch (src/comm/group_state.h has its content).
  const std::shared_ptr<GroupState>& state() const { return state_; }

 private:
  std::shared_ptr<GroupState> state_;
};

}  // namespace penstock
