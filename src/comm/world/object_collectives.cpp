// Communication of value trees: first the size, then the serialized bytes.
#include "value/serialize.h"

#include <penstock/base/error.h>
#include <penstock/comm/group.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace penstock::comm {
namespace {

at::Tensor bytes_tensor(const std::vector<std::uint8_t>& bytes) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr<std::uint8_t>(), bytes.data(), bytes.size());
  return tensor;
}

c10::IValue parse(const at::Tensor& bytes, std::int64_t size) {
  return value::deserialize({bytes.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(size)});
}

at::Tensor size_tensor(std::int64_t size) {
  return at::full({1}, size, at::kLong);
}

}  // namespace

void Group::send_object(const c10::IValue& object, int to, int tag) const {
  const at::Tensor bytes = bytes_tensor(value::serialize(object));
  Work size = isend(size_tensor(bytes.numel()), to, tag);
  Work content = isend(bytes, to, tag);
  size.wait();
  content.wait();
}

c10::IValue Group::recv_object(int from, int tag) const {
  const at::Tensor size = size_tensor(0);
  recv(size, from, tag);
  const at::Tensor bytes = at::empty({size.item<std::int64_t>()}, at::kByte);
  recv(bytes, from, tag);
  return parse(bytes, bytes.numel());
}

c10::IValue Group::broadcast_object(const c10::IValue& object, int root) const {
  at::Tensor bytes;
  const at::Tensor size = size_tensor(0);
  if (rank() == root) {
    bytes = bytes_tensor(value::serialize(object));
    size.fill_(bytes.numel());
  }
  broadcast(size, root);
  if (rank() != root) bytes = at::empty({size.item<std::int64_t>()}, at::kByte);
  broadcast(bytes, root);
  return parse(bytes, bytes.numel());
}

std::vector<c10::IValue> Group::all_gather_object(const c10::IValue& object) const {
  const at::Tensor local = bytes_tensor(value::serialize(object));
  const std::vector<at::Tensor> sizes = all_gather(size_tensor(local.numel()));
  std::int64_t most = 0;
  for (const at::Tensor& size : sizes) most = std::max(most, size.item<std::int64_t>());
  const at::Tensor padded = at::zeros({most}, at::kByte);
  padded.narrow(0, 0, local.numel()).copy_(local);
  const std::vector<at::Tensor> all = all_gather(padded);
  std::vector<c10::IValue> objects;
  for (std::size_t i = 0; i < all.size(); ++i)
    objects.push_back(parse(all[i].contiguous(), sizes[i].item<std::int64_t>()));
  return objects;
}

}  // namespace penstock::comm
