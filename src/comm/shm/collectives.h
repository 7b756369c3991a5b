// The collectives of a group whose ranks are on one host. Every reduction runs in rank order, so that its
// result does not depend on timing and equals that of thread ranks.
#pragma once

#include "comm/shm/link.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::comm::shm {

//! A group, as its members send to each other.
class Channel {
 public:
  //! `members` are the indexes of the members on the host; this rank is members[rank].
  Channel(std::shared_ptr<Link> link, std::uint64_t number, std::vector<int> members, int rank)
      : link_(std::move(link)), number_(number), members_(std::move(members)), rank_(rank) {}

  RequestPtr send(const at::Tensor& tensor, int to, int tag) const;
  RequestPtr receive(const at::Tensor& tensor, int from, int tag) const;

  // Tensors are contiguous. Members must call collectives in the same order.
  RequestPtr broadcast(const at::Tensor& tensor, int root);
  RequestPtr all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op);
  //! `outputs` has one tensor per rank.
  RequestPtr all_gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input);
  //! `inputs` has one tensor per rank.
  RequestPtr reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                            const c10d::ReduceOp& op);
  RequestPtr all_to_all(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs);
  RequestPtr barrier();

  Link& link() const { return *link_; }

 private:
  class Collective;

  int size() const { return static_cast<int>(members_.size()); }
  Key key(int member, std::int64_t tag) const;
  std::unique_ptr<Collective> collective();
  void reduce_in_order(Collective& run, const at::Tensor& sum, const at::Tensor& own,
                       const c10d::ReduceOp& op) const;
  RequestPtr start(std::unique_ptr<Collective> collective) const;

  std::shared_ptr<Link> link_;
  std::uint64_t number_;
  std::vector<int> members_;
  int rank_;
  std::atomic<std::int64_t> collectives_{0};
};

}  // namespace penstock::comm::shm
