// Signatures of value trees.
#include "runtime/setup/signature.h"

#include <penstock/tensor/dtensor.h>

#include <ATen/core/Tensor.h>

#include <bit>

namespace penstock::runtime {

Signature& Signature::add(std::uint64_t value) {
  state_ = (state_ ^ value) * kFnv1aPrime;
  state_ ^= state_ >> 29U;
  return *this;
}

Signature& Signature::add(std::string_view text) {
  add(text.size());
  for (const char c : text) add(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
  return *this;
}

Signature& Signature::add(const c10::IValue& tree) {
  if (tree.isTensor()) {
    const at::Tensor& tensor = tree.toTensor();
    if (!tensor.defined()) return add(std::uint64_t{1});
    add(std::uint64_t{2}).add(static_cast<std::uint64_t>(tensor.scalar_type()));
    add(tensor.requires_grad() ? std::uint64_t{1} : std::uint64_t{0})
        .add(static_cast<std::uint64_t>(tensor.dim()));
    for (const std::int64_t size : tensor.sizes()) add(static_cast<std::uint64_t>(size));
    if (!tensor::is_dtensor(tensor)) return *this;
    const tensor::DeviceMesh mesh = tensor::mesh_of(tensor);
    for (const std::int64_t size : mesh.shape()) add(static_cast<std::uint64_t>(size));
    return add(std::string_view(to_string(tensor::placements_of(tensor))));
  }
  if (tree.isTuple()) {
    add(std::uint64_t{3}).add(tree.toTupleRef().elements().size());
    for (const c10::IValue& item : tree.toTupleRef().elements()) add(item);
    return *this;
  }
  if (tree.isList()) {
    add(std::uint64_t{4}).add(tree.toListRef().size());
    for (const c10::IValue& item : tree.toListRef()) add(item);
    return *this;
  }
  if (tree.isGenericDict()) {
    add(std::uint64_t{5});
    for (const auto& item : tree.toGenericDict()) add(item.key()).add(item.value());
    return *this;
  }
  if (tree.isInt()) return add(std::uint64_t{6}).add(static_cast<std::uint64_t>(tree.toInt()));
  if (tree.isDouble()) return add(std::uint64_t{7}).add(std::bit_cast<std::uint64_t>(tree.toDouble()));
  if (tree.isBool()) return add(tree.toBool() ? std::uint64_t{8} : std::uint64_t{9});
  if (tree.isString()) return add(std::uint64_t{10}).add(std::string_view(tree.toStringRef()));
  return add(std::string_view(tree.tagKind()));  // a custom type: only its kind is hashed
}

}  // namespace penstock::runtime
