// Message metadata: construction, comparison and serialization.
#include "runtime/transfer/message.h"

#include "base/text.h"
#include "value/kind_name.h"
#include "value/serialize.h"

#include <ATen/core/List.h>

namespace penstock::runtime {

MessageMeta MessageMeta::of(const Message& message) {
  MessageMeta meta{message.structure, {}, {}, message.dtensors};
  meta.tensors.reserve(message.leaves.size());
  for (const c10::IValue& leaf : message.leaves) {
    const bool tensor = leaf.isTensor() && leaf.toTensor().defined();
    meta.tensors.push_back(tensor ? std::optional(value::TensorMeta::of(leaf.toTensor()).dense())
                                  : std::nullopt);
    meta.others.push_back(tensor ? c10::IValue() : leaf);
  }
  return meta;
}

std::vector<std::uint8_t> MessageMeta::serialize() const {
  ByteWriter out;
  out.u8(structure ? 1 : 0);
  if (structure) write(out, *structure);
  out.unsigned_int(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out.u8(tensors[i] ? 1 : 0);
    if (tensors[i]) {
      write(out, *tensors[i]);
      continue;
    }
    const std::vector<std::uint8_t> other = penstock::value::serialize(others[i]);
    out.unsigned_int(other.size());
    out.raw(other.data(), other.size());
  }
  out.unsigned_int(dtensors.size());
  for (const auto& dtensor : dtensors) {
    out.u8(dtensor ? 1 : 0);
    if (dtensor) write(out, *dtensor);
  }
  return out.take();
}

MessageMeta MessageMeta::deserialize(std::span<const std::uint8_t> bytes) {
  ByteReader in(bytes);
  MessageMeta meta;
  if (in.u8() != 0) meta.structure = std::make_shared<const value::Structure>(value::read_structure(in));
  const std::uint64_t leaves = in.unsigned_int();
  for (std::uint64_t i = 0; i < leaves; ++i) {
    if (in.u8() != 0) {
      meta.tensors.emplace_back(value::read_tensor_meta(in));
      meta.others.emplace_back();
      continue;
    }
    meta.tensors.emplace_back(std::nullopt);
    meta.others.push_back(penstock::value::deserialize(in.raw(in.unsigned_int())));
  }
  meta.dtensors.resize(in.count());
  for (auto& dtensor : meta.dtensors) {
    if (in.u8() != 0) dtensor = read_dtensor_meta(in);
  }
  return meta;
}

std::size_t MessageMeta::nbytes() const {
  std::size_t bytes = 0;
  for (const auto& meta : tensors) bytes += meta ? meta->nbytes() : 0;
  return bytes;
}

bool MessageMeta::fits(const Message& message) const {
  if (message.leaves.size() != tensors.size() || message.dtensors != dtensors) return false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const c10::IValue& leaf = message.leaves[i];
    const bool tensor = leaf.isTensor() && leaf.toTensor().defined();
    if (tensor != tensors[i].has_value()) return false;
    if (!tensor) {
      if (!value::leaves_equal(leaf, others[i])) return false;
      continue;
    }
    const at::Tensor& value = leaf.toTensor();
    if (value.sizes() != at::IntArrayRef(tensors[i]->shape) || value.scalar_type() != tensors[i]->dtype ||
        value.requires_grad() != tensors[i]->requires_grad) {
      return false;
    }
  }
  return structure == message.structure ||
         (structure && message.structure && *structure == *message.structure);
}

std::string MessageMeta::difference(const Message& message) const {
  const auto text = [](const MessageMeta& metas) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < metas.tensors.size(); ++i) {
      const auto& meta = metas.tensors[i];
      parts.push_back(meta ? to_string(*meta) + (meta->requires_grad ? " with gradient" : "")
                           : value::kind_name(metas.others[i]));
      if (i < metas.dtensors.size() && metas.dtensors[i])
        parts.back() += " of " + to_string(*metas.dtensors[i]);
    }
    return "(" + join(parts, ", ") + ")";
  };
  if (fits(message)) return {};
  return text(of(message)) + ", previously " + text(*this);
}

std::shared_ptr<const MessageMeta> MessageMetaCache::find(int edge, Direction way,
                                                          std::uint64_t signature) const {
  const auto found = metas_.find({signature, edge, way});
  return found == metas_.end() ? nullptr : found->second;
}

bool MessageMetaCache::add(int edge, Direction way, std::uint64_t signature,
                           std::shared_ptr<const MessageMeta> meta) {
  return metas_.try_emplace({signature, edge, way}, std::move(meta)).second;
}

void MessageMetaCache::merge(MessageMetaCache&& other, const std::vector<std::uint64_t>& signatures) {
  metas_.merge(other.metas_);
  for (const std::uint64_t signature : signatures) signatures_[signature] = true;
}

}  // namespace penstock::runtime
