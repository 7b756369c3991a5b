// Serializes value trees, structures and tensor metadata for messages between ranks. This is not a file
// format: both ends must run the same version, which the first byte encodes.
#pragma once

#include "base/io/bytes.h"

#include <penstock/value/tensor_meta.h>
#include <penstock/value/tree.h>

#include <cstdint>
#include <span>
#include <vector>

namespace penstock::value {

//! Serializes a tree of tensors, None, bools, ints, doubles, complex numbers and strings. Tensors are sent as
//! contiguous elements and are created on the CPU; they keep `requires_grad`. UsageError, with the path of
//! the leaf, for a leaf of any other type.
std::vector<std::uint8_t> serialize(const c10::IValue& tree);

//! The inverse of `serialize`. ParseError, with the position, if the bytes are not exactly one tree.
c10::IValue deserialize(std::span<const std::uint8_t> bytes);

// Building blocks for larger messages.
void write(ByteWriter& out, const Structure& structure);
void write(ByteWriter& out, const TensorMeta& meta);
void write(ByteWriter& out, const TreeMeta& meta);
Structure read_structure(ByteReader& in);
TensorMeta read_tensor_meta(ByteReader& in);
TreeMeta read_tree_meta(ByteReader& in);

std::vector<std::uint8_t> serialize_meta(const TreeMeta& meta);
TreeMeta deserialize_meta(std::span<const std::uint8_t> bytes);

}  // namespace penstock::value
