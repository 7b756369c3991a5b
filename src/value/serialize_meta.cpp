// Serialized structures and metadata. The reader validates every count, kind and size.
#include "base/text.h"
#include "value/serialize.h"
#include "value/serialize_parts.h"

#include <limits>

namespace penstock::value {
namespace {

using Kind = Structure::Kind;

constexpr int kMaxDepth = 128;  // deeper nesting means a corrupt message and could overflow the stack

constexpr std::array kDtypes = {at::kByte,         at::kChar,          at::kShort, at::kInt,
                                at::kLong,         at::kHalf,          at::kFloat, at::kDouble,
                                at::kComplexFloat, at::kComplexDouble, at::kBool,  at::kBFloat16};

template <class E>
E checked_enum(ByteReader& in, E last, const char* what) {
  const std::uint8_t number = in.u8();
  if (number > static_cast<std::uint8_t>(last)) in.fail(str_cat("unknown ", what, " ", number));
  return static_cast<E>(number);
}

Structure read_structure_at(ByteReader& in, int depth) {
  if (depth > kMaxDepth) in.fail("the tree is nested too deeply");
  Structure structure;
  structure.kind = checked_enum(in, Kind::Dict, "kind of node");
  if (structure.kind == Kind::Leaf) return structure;
  if (structure.kind != Kind::Tuple)
    structure.element = checked_enum(in, ElementKind::String, "element type");
  const std::size_t count = in.count();
  const bool by_string = structure.kind == Kind::Dict && in.u8() != 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (structure.kind == Kind::Dict) {
      structure.keys.push_back(by_string ? DictKey(in.text()) : DictKey(in.signed_int()));
    }
    structure.children.push_back(read_structure_at(in, depth + 1));
  }
  return structure;
}

}  // namespace

void write_dtype(ByteWriter& out, at::ScalarType dtype) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i] == dtype) return out.u8(static_cast<std::uint8_t>(i));
  }
  throw UsageError("tensors of dtype " + dtype_name(dtype) + " cannot be sent in a message");
}

at::ScalarType read_dtype(ByteReader& in) {
  const std::uint8_t index = in.u8();
  if (index >= kDtypes.size()) in.fail(str_cat("unknown dtype ", index));
  return kDtypes[index];
}

void write_sizes(ByteWriter& out, at::IntArrayRef sizes) {
  out.unsigned_int(sizes.size());
  for (const std::int64_t size : sizes) out.signed_int(size);
}

std::vector<std::int64_t> read_sizes(ByteReader& in) {
  std::vector<std::int64_t> sizes(in.count());
  for (std::int64_t& size : sizes) {
    size = in.signed_int();
    if (size < 0) in.fail("a tensor has a negative size");
  }
  return sizes;
}

std::uint64_t checked_numel(ByteReader& in, const std::vector<std::int64_t>& shape) {
  // Checks the product without zeros too, because libtorch multiplies strides regardless of them.
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / 16;
  std::uint64_t product = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size == 0) {
      empty = true;
    } else {
      if (static_cast<std::uint64_t>(size) > limit / product) in.fail("a tensor is too large");
      product *= static_cast<std::uint64_t>(size);
    }
  }
  return empty ? 0 : product;
}

void write(ByteWriter& out, const Structure& structure) {
  out.u8(static_cast<std::uint8_t>(structure.kind));
  if (structure.kind == Kind::Leaf) return;
  if (structure.kind != Kind::Tuple) out.u8(static_cast<std::uint8_t>(structure.element));
  out.unsigned_int(structure.children.size());
  const bool by_string =
      !structure.keys.empty() && std::holds_alternative<std::string>(structure.keys.front());
  if (structure.kind == Kind::Dict) out.u8(by_string ? 1 : 0);
  for (std::size_t i = 0; i < structure.children.size(); ++i) {
    if (structure.kind == Kind::Dict) {
      if (by_string) {
        out.text(std::get<std::string>(structure.keys[i]));
      } else {
        out.signed_int(std::get<std::int64_t>(structure.keys[i]));
      }
    }
    write(out, structure.children[i]);
  }
}

Structure read_structure(ByteReader& in) {
  return read_structure_at(in, 0);
}

void write(ByteWriter& out, const TensorMeta& meta) {
  if (meta.distributed) {
    throw UsageError(
        "the metadata of a distributed tensor (" + to_string(meta) + ") cannot be sent in a message", {},
        "send the metadata of the local shard, local_of(tensor)");
  }
  write_dtype(out, meta.dtype);
  out.unsigned_int(static_cast<std::uint64_t>(meta.device));
  out.u8(meta.requires_grad ? 1 : 0);
  write_sizes(out, meta.shape);
  write_sizes(out, meta.stride);
}

TensorMeta read_tensor_meta(ByteReader& in) {
  TensorMeta meta;
  meta.dtype = read_dtype(in);
  const std::uint64_t device = in.unsigned_int();
  if (device >= static_cast<std::uint64_t>(at::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)) {
    in.fail(str_cat("unknown kind of device ", device));
  }
  meta.device = static_cast<at::DeviceType>(device);
  meta.requires_grad = in.u8() != 0;
  meta.shape = read_sizes(in);
  meta.stride = read_sizes(in);
  if (meta.shape.size() != meta.stride.size()) in.fail("a shape and its strides differ in length");
  checked_numel(in, meta.shape);
  return meta;
}

void write(ByteWriter& out, const TreeMeta& meta) {
  write(out, meta.structure);
  for (const std::optional<TensorMeta>& leaf : meta.leaves) {
    out.u8(leaf ? 1 : 0);
    if (leaf) write(out, *leaf);
  }
}

TreeMeta read_tree_meta(ByteReader& in) {
  TreeMeta meta{read_structure(in), {}};
  meta.leaves.resize(meta.structure.num_leaves());
  for (auto& leaf : meta.leaves) {
    if (in.u8() != 0) leaf = read_tensor_meta(in);
  }
  return meta;
}

std::vector<std::uint8_t> serialize_meta(const TreeMeta& meta) {
  ByteWriter out;
  out.u8(kMessageVersion);
  write(out, meta);
  return out.take();
}

TreeMeta deserialize_meta(std::span<const std::uint8_t> bytes) {
  ByteReader in(bytes);
  expect_version(in);
  TreeMeta meta = read_tree_meta(in);
  in.expect_end();
  return meta;
}

}  // namespace penstock::value
