// Arithmetic of regions: which elements of a tensor a region contains, and their order in memory.
#pragma once

#include <penstock/checkpoint/piece.h>

#include <optional>
#include <span>
#include <vector>

namespace penstock::checkpoint {

std::int64_t numel_of(std::span<const std::int64_t> lengths);

//! Returns the intersection of two boxes; nullopt if it is empty.
std::optional<Box> intersection(const Box& a, const Box& b);

//! Appends the elements of `from` that are not in `removed`, as disjoint boxes.
void subtract(Box from, const Box& removed, std::vector<Box>& rest);

//! A box whose elements are stored in row-major order, starting at element `offset` of the memory of a
//! region.
struct Chunk {
  Box box;
  std::int64_t offset = 0;
};

//! Splits a region of a tensor of this shape into chunks, in memory order. A range over d dims has at most
//! 2d - 1 chunks.
std::vector<Chunk> chunks_of(const Region& part, std::span<const std::int64_t> shape);

//! Returns the unique representation of a set of elements: a Box if it is one, else a range; never
//! FullTensor.
Region canonical(const Region& part, std::span<const std::int64_t> shape);

//! Returns why the region is not valid for a tensor of this shape; empty if it is valid.
std::string region_problem(const Region& part, std::span<const std::int64_t> shape);

std::int64_t numel_of(const Region& part, std::span<const std::int64_t> shape);

//! Formats a region: `[0:4, 2:8]`, `[flat 3:17]`, or both in sequence for a range of a box.
std::string to_string(const Region& part);

struct RegionChunk {
  Chunk chunk;
  std::size_t part = 0;  //!< index of the region
};

//! Returns the chunks of all regions, sorted by first element. Subtracting disjoint regions from the full
//! tensor in this order leaves few boxes at any time.
std::vector<RegionChunk> sorted_chunks(const std::vector<Region>& parts, std::span<const std::int64_t> shape);

//! Returns the number of elements of a tensor of this shape that are in none of the regions; nullopt if so
//! many regions overlap that counting would take seconds.
std::optional<std::int64_t> uncovered(std::span<const std::int64_t> shape, const std::vector<Region>& parts);

}  // namespace penstock::checkpoint
