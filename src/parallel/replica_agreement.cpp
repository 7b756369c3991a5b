// Compares and synchronizes replicas.
#include "parallel/replica_agreement.h"

#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/tensor/flatten.h>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <random>
#include <sstream>

namespace penstock::parallel {
namespace {

std::string to_string(const value::NamedTensor& item, const char* kind) {
  std::ostringstream text;
  text << kind << " " << quote(item.name) << " of " << c10::toString(item.tensor.scalar_type())
       << item.tensor.sizes();
  if (tensor::is_dtensor(item.tensor))
    text << " with placements " << penstock::tensor::to_string(tensor::placements_of(item.tensor));
  text << (item.tensor.requires_grad() ? "" : " without gradient");
  return text.str();
}

// Bytes per broadcast, which packs tensors of one dtype: large enough for throughput, small enough to bound
// memory.
constexpr std::size_t kBatchBytes = std::size_t{32} << 20;

void broadcast_batch(const comm::Group& group, const std::vector<at::Tensor>& batch) {
  if (batch.empty()) return;
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : batch) elements += tensor.numel();
  const at::Tensor flat = at::empty({elements}, batch.front().options().requires_grad(false));
  const auto each = [&](const auto& body) {
    std::int64_t offset = 0;
    for (const at::Tensor& tensor : batch) {
      body(tensor.detach(), flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  };
  if (group.rank() == 0) each([](const at::Tensor& tensor, const at::Tensor& part) { part.copy_(tensor); });
  group.broadcast(flat, 0);
  if (group.rank() != 0) each([](const at::Tensor& tensor, const at::Tensor& part) { tensor.copy_(part); });
}

}  // namespace

std::vector<value::NamedTensor> each_once(const std::vector<value::NamedTensor>& tensors) {
  std::vector<value::NamedTensor> once;
  for (const value::NamedTensor& item : tensors) {
    const auto same = [&](const value::NamedTensor& other) { return other.tensor.is_same(item.tensor); };
    if (item.tensor.defined() && std::none_of(once.begin(), once.end(), same)) once.push_back(item);
  }
  return once;
}

void check_agreement(const comm::Group& group, const std::vector<value::NamedTensor>& parameters,
                     const std::vector<value::NamedTensor>& buffers) {
  if (group.size() == 1) return;
  c10::List<std::string> descriptions;
  for (const value::NamedTensor& item : parameters) descriptions.push_back(to_string(item, "parameter"));
  for (const value::NamedTensor& item : buffers) descriptions.push_back(to_string(item, "buffer"));
  const std::vector<c10::IValue> all = group.all_gather_object(c10::IValue(descriptions));
  const auto lines = [&](std::size_t rank) {
    std::vector<std::string> texts;
    for (const c10::IValue& line : all[rank].toListRef()) texts.push_back(line.toStringRef());
    return texts;
  };
  const std::vector<std::string> first = lines(0);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::vector<std::string> other = lines(rank);
    const auto [a, b] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
    if (a == first.end() && b == other.end()) continue;
    const std::string rank_text = std::to_string(group.global_rank(static_cast<int>(rank)).value);
    throw UsageError(str_cat("the replicas are different models: rank ", group.global_rank(0).value, " has ",
                             (a == first.end() ? "nothing" : *a), " where rank ", rank_text, " has ",
                             (b == other.end() ? "nothing" : *b)),
                     {}, "build the same modules in the same order on every rank");
  }
  for (const value::NamedTensor& item : parameters) {
    if (!item.tensor.is_meta()) return require_own_device(group, item.tensor.device());
  }
}

void require_own_device(const comm::Group& group, c10::Device device) {
  if (group.size() == 1 || device.is_cpu() || device.is_meta()) return;
  // A random number tells processes apart, also those of different machines.
  static const std::uint64_t process =
      std::random_device()() | (std::uint64_t{std::random_device()()} << 32U);
  const std::string local = str_cat(device.str(), " of process ", process);
  std::map<std::string, std::size_t> users;
  const std::vector<c10::IValue> all = group.all_gather_object(c10::IValue(local));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto [found, is_new] = users.emplace(all[rank].toStringRef(), rank);
    if (is_new) continue;
    const auto world_rank = [&](std::size_t member) {
      return group.global_rank(static_cast<int>(member)).value;
    };
    throw UsageError(
        str_cat("ranks ", world_rank(found->second), " and ", world_rank(rank),
                " are threads of one process and share a device: their backward passes run on one "
                "thread and would wait for each other"),
        {}, "give each thread rank a device of its own (InitOptions::device), or use processes");
  }
}

void broadcast_values(const comm::Group& group, const std::vector<at::Tensor>& tensors) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> batch;
  std::size_t bytes = 0;
  for (const at::Tensor& value : tensors) {
    const at::Tensor tensor = tensor::flatten_dtensor(value).local;
    const bool fits = batch.empty() || (batch.front().scalar_type() == tensor.scalar_type() &&
                                        batch.front().device() == tensor.device() && bytes < kBatchBytes);
    if (!fits) {
      broadcast_batch(group, batch);
      batch.clear();
      bytes = 0;
    }
    batch.push_back(tensor);
    bytes += tensor.nbytes();
  }
  broadcast_batch(group, batch);
}

}  // namespace penstock::parallel
