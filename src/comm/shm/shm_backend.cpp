// The c10d backend over shared memory.
#include "comm/shm/shm_backend.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <utility>

namespace penstock::comm {
namespace {

using Clock = std::chrono::steady_clock;

class ShmWork : public c10d::Work {
 public:
  ShmWork(int rank, c10d::OpType op, std::shared_ptr<shm::Link> link, shm::RequestPtr request)
      : c10d::Work(rank, op), link_(std::move(link)), request_(std::move(request)) {}

  bool isCompleted() override { return link_->poll(*request_); }

  bool wait(std::chrono::milliseconds timeout) override {
    const auto deadline =
        timeout == kNoTimeout ? Clock::now() + std::chrono::hours(24 * 365) : Clock::now() + timeout;
    if (!link_->wait(*request_, deadline, aborted_)) {
      if (aborted_) return false;
      throw CommError("timed out");
    }
    switch (request_->status.load()) {
      case shm::Request::Status::Done:
        return true;
      case shm::Request::Status::WrongSize:
        throw ShapeError(request_->error);
      default:
        throw CommError(request_->error);
    }
  }

  void abort() override {
    aborted_ = true;
    link_->wake();
  }

 private:
  std::shared_ptr<shm::Link> link_;
  shm::RequestPtr request_;
  std::atomic<bool> aborted_{false};
};

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1 || !tensors[0].is_contiguous() || !tensors[0].is_cpu())
    throw UsageError("an operation over shared memory takes one contiguous CPU tensor");
  return tensors[0];
}

std::vector<at::Tensor> even_parts(const at::Tensor& tensor, std::int64_t count) {
  return tensor.detach().view({count, -1}).unbind(0);
}

std::vector<at::Tensor> parts_by_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows,
                                      std::int64_t count) {
  const std::vector<std::int64_t> even(static_cast<std::size_t>(count), tensor.size(0) / count);
  return tensor.detach().split_with_sizes(rows.empty() ? even : rows);
}

}  // namespace

bool is_shm_work(const c10d::Work& work) {
  return dynamic_cast<const ShmWork*>(&work) != nullptr;
}

ShmBackend::ShmBackend(Setup setup)
    : Backend(setup.rank, static_cast<int>(setup.index.size())), setup_(std::move(setup)) {
  on_one_host_ = std::all_of(setup_.index.begin(), setup_.index.end(),
                             [](const auto& index) { return index.has_value(); });
  std::vector<int> members;
  for (const auto& index : setup_.index) members.push_back(index.value_or(-1));
  channel_ = std::make_shared<shm::Channel>(setup_.link, setup_.channel, std::move(members), setup_.rank);
  if (!on_one_host_) gloo();
}

ShmBackend::~ShmBackend() {
  // The destructor of a failed Gloo group waits for its threads: leak it.
  if (gloo_ && setup_.generation->failure.failed()) [[maybe_unused]]
    auto* abandoned = gloo_.release();
}

c10::intrusive_ptr<c10d::Backend::Options> ShmBackend::getBackendOptions() {
  return c10::make_intrusive<Backend::Options>("shm");
}

c10d::Backend& ShmBackend::gloo() {
  const std::lock_guard lock(mutex_);
  if (!gloo_) gloo_ = setup_.open_gloo();
  return *gloo_;
}

ShmBackend::WorkPtr ShmBackend::work(c10d::OpType type, shm::RequestPtr request) const {
  return c10::make_intrusive<ShmWork>(getRank(), type, setup_.link, std::move(request));
}

ShmBackend::WorkPtr ShmBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  if (!setup_.index[static_cast<std::size_t>(to)]) return gloo().send(tensors, to, tag);
  return work(c10d::OpType::SEND, channel_->send(only(tensors), to, tag));
}

ShmBackend::WorkPtr ShmBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  if (!setup_.index[static_cast<std::size_t>(from)]) return gloo().recv(tensors, from, tag);
  return work(c10d::OpType::RECV, channel_->receive(only(tensors), from, tag));
}

ShmBackend::WorkPtr ShmBackend::broadcast(std::vector<at::Tensor>& tensors,
                                          const c10d::BroadcastOptions& options) {
  if (!on_one_host_) return gloo().broadcast(tensors, options);
  return work(c10d::OpType::BROADCAST,
              channel_->broadcast(only(tensors), static_cast<int>(options.rootRank)));
}

ShmBackend::WorkPtr ShmBackend::allreduce(std::vector<at::Tensor>& tensors,
                                          const c10d::AllreduceOptions& options) {
  if (!on_one_host_) return gloo().allreduce(tensors, options);
  return work(c10d::OpType::ALLREDUCE, channel_->all_reduce(only(tensors), options.reduceOp));
}

ShmBackend::WorkPtr ShmBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::AllgatherOptions& options) {
  if (!on_one_host_) return gloo().allgather(outputs, inputs, options);
  return work(c10d::OpType::ALLGATHER, channel_->all_gather(outputs.at(0), only(inputs)));
}

ShmBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  if (!on_one_host_) return gloo()._allgather_base(output, input, options);
  return work(c10d::OpType::_ALLGATHER_BASE,
              channel_->all_gather(even_parts(output, ranks()), only({input})));
}

ShmBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  if (!on_one_host_) return gloo()._reduce_scatter_base(output, input, options);
  return work(c10d::OpType::_REDUCE_SCATTER_BASE,
              channel_->reduce_scatter(only({output}), even_parts(input, ranks()), options.reduceOp));
}

ShmBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<std::int64_t>& output_rows,
                                              std::vector<std::int64_t>& input_rows,
                                              const c10d::AllToAllOptions& options) {
  if (!on_one_host_) return gloo().alltoall_base(output, input, output_rows, input_rows, options);
  return work(c10d::OpType::ALLTOALL_BASE, channel_->all_to_all(parts_by_rows(output, output_rows, ranks()),
                                                                parts_by_rows(input, input_rows, ranks())));
}

ShmBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions& options) {
  if (!on_one_host_) return gloo().barrier(options);
  return work(c10d::OpType::BARRIER, channel_->barrier());
}

ShmBackend::WorkPtr ShmBackend::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) {
  return gloo().reduce(tensors, options);
}

ShmBackend::WorkPtr ShmBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                       std::vector<at::Tensor>& inputs, const c10d::GatherOptions& options) {
  return gloo().gather(outputs, inputs, options);
}

ShmBackend::WorkPtr ShmBackend::scatter(std::vector<at::Tensor>& outputs,
                                        std::vector<std::vector<at::Tensor>>& inputs,
                                        const c10d::ScatterOptions& options) {
  return gloo().scatter(outputs, inputs, options);
}

ShmBackend::WorkPtr ShmBackend::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                         const c10d::AllToAllOptions& options) {
  return gloo().alltoall(outputs, inputs, options);
}

ShmBackend::WorkPtr ShmBackend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  return gloo().recvAnysource(tensors, tag);
}

}  // namespace penstock::comm
