// Serialized value trees: version, structure, then the leaves in order, each with a tag and its content.
#include "value/serialize.h"

#include "base/text.h"
#include "value/kind_name.h"
#include "value/serialize_parts.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <memory>

namespace penstock::value {
namespace {

using c10::IValue;

enum class Tag : std::uint8_t {
  None,
  Undefined,
  Tensor,
  GradTensor,
  False,
  True,
  Int,
  Double,
  Complex,
  String
};

void write_tensor(ByteWriter& out, const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    throw UsageError("only dense, plain tensors can be sent in a message");
  }
  const at::Tensor elements = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu();
  out.u8(static_cast<std::uint8_t>(tensor.requires_grad() ? Tag::GradTensor : Tag::Tensor));
  write_dtype(out, elements.scalar_type());
  write_sizes(out, elements.sizes());
  out.raw(elements.const_data_ptr(), elements.nbytes());
}

void write_leaf(ByteWriter& out, const IValue& leaf) {
  const auto tag = [&out](Tag value) { out.u8(static_cast<std::uint8_t>(value)); };
  if (leaf.isNone()) {
    tag(Tag::None);
  } else if (leaf.isTensor()) {
    if (!leaf.toTensor().defined()) return tag(Tag::Undefined);
    write_tensor(out, leaf.toTensor());
  } else if (leaf.isBool()) {
    tag(leaf.toBool() ? Tag::True : Tag::False);
  } else if (leaf.isInt()) {
    tag(Tag::Int);
    out.signed_int(leaf.toInt());
  } else if (leaf.isDouble()) {
    tag(Tag::Double);
    out.real(leaf.toDouble());
  } else if (leaf.isComplexDouble()) {
    tag(Tag::Complex);
    out.real(leaf.toComplexDouble().real());
    out.real(leaf.toComplexDouble().imag());
  } else if (leaf.isString()) {
    tag(Tag::String);
    out.text(leaf.toStringRef());
  } else {
    throw UsageError("a value of kind " + kind_name(leaf) + " cannot be sent in a message");
  }
}

at::Tensor read_tensor(ByteReader& in, bool requires_grad) {
  const at::ScalarType dtype = read_dtype(in);
  const std::vector<std::int64_t> shape = read_sizes(in);
  const auto elements = in.raw(checked_numel(in, shape) * c10::elementSize(dtype));
  if (dtype == at::kBool) {
    for (const std::uint8_t byte : elements) {
      if (byte > 1) in.fail("invalid bool: expected 0 or 1");
    }
  }
  const bool differentiable = c10::isFloatingType(dtype) || c10::isComplexType(dtype);
  if (requires_grad && !differentiable)
    in.fail("a " + dtype_name(dtype) + " tensor cannot require a gradient");
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(dtype));
  if (!elements.empty()) std::memcpy(tensor.mutable_data_ptr(), elements.data(), elements.size());
  return tensor.set_requires_grad(requires_grad);
}

IValue read_leaf(ByteReader& in) {
  const std::uint8_t number = in.u8();
  if (number > static_cast<std::uint8_t>(Tag::String)) in.fail(str_cat("unknown kind of value ", number));
  switch (static_cast<Tag>(number)) {
    case Tag::None:
      return {};
    case Tag::Undefined:
      return at::Tensor();
    case Tag::Tensor:
      return read_tensor(in, false);
    case Tag::GradTensor:
      return read_tensor(in, true);
    case Tag::False:
      return false;
    case Tag::True:
      return true;
    case Tag::Int:
      return in.signed_int();
    case Tag::Double:
      return in.real();
    case Tag::Complex: {
      const double real = in.real();
      return c10::complex<double>(real, in.real());
    }
    case Tag::String:
      return in.text();
  }
  in.fail("unknown kind of value");
}

}  // namespace

std::vector<std::uint8_t> serialize(const IValue& tree) {
  const FlatTree flat = flatten(tree);
  ByteWriter out;
  out.u8(kMessageVersion);
  write(out, flat.structure);
  for (std::size_t i = 0; i < flat.leaves.size(); ++i) {
    try {
      write_leaf(out, flat.leaves[i]);
    } catch (const UsageError& error) {
      ErrorContext context;
      context.tensor = flat.structure.paths("value")[i];
      throw UsageError(error.message(), context, error.hint());
    }
  }
  return out.take();
}

IValue deserialize(std::span<const std::uint8_t> bytes) {
  ByteReader in(bytes);
  expect_version(in);
  const Structure structure = read_structure(in);
  std::vector<IValue> leaves(structure.num_leaves());
  for (IValue& leaf : leaves) leaf = read_leaf(in);
  in.expect_end();
  return unflatten(leaves, structure);
}

}  // namespace penstock::value
