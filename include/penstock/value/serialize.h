// Value trees, structures and tensor metadata as bytes, for messages between ranks. Not a file format: both
// ends run the same version, which the first byte checks.
#pragma once

#include <penstock/value/bytes.h>
#include <penstock/value/tensor_meta.h>
#include <penstock/value/tree.h>

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

//! A tree of tensors, None, bools, ints, doubles, complex numbers and strings. Tensors travel as contiguous
//! elements and arrive on the CPU, keeping `requires_grad`. UsageError names the place of a leaf that cannot
//! travel.
std::vector<std::uint8_t> serialize(const c10::IValue& tree);

//! The inverse; ParseError with the position if the bytes are not exactly one tree.
c10::IValue deserialize(std::span<const std::uint8_t> bytes);

// Parts of larger messages.
void write(ByteWriter& out, const Structure& structure);
void write(ByteWriter& out, const TensorMeta& meta);
void write(ByteWriter& out, const TreeMeta& meta);
Structure read_structure(ByteReader& in);
TensorMeta read_tensor_meta(ByteReader& in);
TreeMeta read_tree_meta(ByteReader& in);

std::vector<std::uint8_t> serialize_meta(const TreeMeta& meta);
TreeMeta deserialize_meta(std::span<const std::uint8_t> bytes);

}  // namespace penstock
