// Arithmetic of boxes: which elements of a tensor a part holds, and in which order they lie in its memory.
#pragma once

#include <penstock/checkpoint/piece.h>

#include <optional>
#include <span>
#include <vector>

namespace penstock {

std::int64_t numel_of(std::span<const std::int64_t> lengths);

//! What both hold; nothing if they share no element.
std::optional<Box> intersection(const Box& a, const Box& b);

//! Appends what `from` holds and `cut` does not, as boxes that share nothing.
void subtract(Box from, const Box& cut, std::vector<Box>& rest);

//! A box whose elements lie one after the other, row by row, from element `offset` of a part's memory on.
struct Chunk {
  Box box;
  std::int64_t offset = 0;
};

//! A part of a tensor of this shape as chunks, in the order of its memory. A range of d dims has at most 2d
//! - 1.
std::vector<Chunk> chunks_of(const Part& part, std::span<const std::int64_t> shape);

//! One spelling for each set of elements: a Box where it is one, else a range; never Whole.
Part canonical(const Part& part, std::span<const std::int64_t> shape);

//! Why there is no such part of a tensor of this shape; empty if there is.
std::string part_problem(const Part& part, std::span<const std::int64_t> shape);

std::int64_t numel_of(const Part& part, std::span<const std::int64_t> shape);

//! `[0:4, 2:8]`, `[flat 3:17]`, or one behind the other for a range of a box.
std::string part_text(const Part& part);

struct PartChunk {
  Chunk chunk;
  std::size_t part = 0;  //!< its index among the parts
};

//! The chunks of all parts by their first element. Taken away in this order from the whole tensor, parts that
//! do not overlap leave few boxes at any time, however many they are.
std::vector<PartChunk> sorted_chunks(const std::vector<Part>& parts, std::span<const std::int64_t> shape);

//! The elements of a tensor of this shape that none of the parts holds; nothing if so many parts overlap that
//! it would take seconds to count them.
std::optional<std::int64_t> uncovered(std::span<const std::int64_t> shape, const std::vector<Part>& parts);

}  // namespace penstock
