// Arithmetic of regions.
#include "checkpoint/pieces/regions.h"

#include "base/text.h"

#include <algorithm>

namespace penstock::checkpoint {
namespace {

Box full_box(std::span<const std::int64_t> shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

//! Splits elements `begin` to `end` of the box into boxes: a partial row, full rows, a partial row. A row is
//! the slice at one index of dim `dim`. The dims before it have length 1.
void split_range(const Box& box, std::size_t dim, std::int64_t begin, std::int64_t end,
                 std::vector<Chunk>& chunks) {
  if (begin >= end) return;
  const std::int64_t row = numel_of(std::span(box.lengths).subspan(dim + 1));
  const std::int64_t first = begin / row, last = end / row;
  const auto rows = [&](std::int64_t from, std::int64_t count) {
    Box part = box;
    part.offsets[dim] += from;
    part.lengths[dim] = count;
    return part;
  };
  const auto add = [&](Box part) {
    const std::int64_t offset =
        chunks.empty() ? 0 : chunks.back().offset + numel_of(chunks.back().box.lengths);
    chunks.push_back({std::move(part), offset});
  };
  if (first == last) return split_range(rows(first, 1), dim + 1, begin % row, end % row, chunks);
  const std::int64_t first_full = begin % row == 0 ? first : first + 1;
  if (first_full > first) split_range(rows(first, 1), dim + 1, begin % row, row, chunks);
  if (last > first_full) add(rows(first_full, last - first_full));
  if (end % row != 0) split_range(rows(last, 1), dim + 1, 0, end % row, chunks);
}

}  // namespace

std::int64_t numel_of(std::span<const std::int64_t> lengths) {
  std::int64_t count = 1;
  for (const std::int64_t length : lengths) count *= length;
  return count;
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both = a;
  for (std::size_t d = 0; d < a.offsets.size(); ++d) {
    const std::int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const std::int64_t end = std::min(a.offsets[d] + a.lengths[d], b.offsets[d] + b.lengths[d]);
    if (end <= begin) return std::nullopt;
    both.offsets[d] = begin;
    both.lengths[d] = end - begin;
  }
  return both;
}

void subtract(Box left, const Box& removed, std::vector<Box>& rest) {
  const std::optional<Box> both = intersection(left, removed);
  if (!both) {
    rest.push_back(std::move(left));
    return;
  }
  // Along each dim, the slices before and after `removed` remain; continue with the slice between them.
  for (std::size_t d = 0; d < left.offsets.size(); ++d) {
    const std::int64_t before = both->offsets[d] - left.offsets[d];
    const std::int64_t after = left.offsets[d] + left.lengths[d] - both->offsets[d] - both->lengths[d];
    if (before > 0) {
      rest.push_back(left);
      rest.back().lengths[d] = before;
    }
    if (after > 0) {
      rest.push_back(left);
      rest.back().offsets[d] = both->offsets[d] + both->lengths[d];
      rest.back().lengths[d] = after;
    }
    left.offsets[d] = both->offsets[d];
    left.lengths[d] = both->lengths[d];
  }
}

std::vector<Chunk> chunks_of(const Region& part, std::span<const std::int64_t> shape) {
  if (numel_of(part, shape) == 0) return {};
  if (const auto* box = std::get_if<Box>(&part)) return {{*box, 0}};
  std::vector<Chunk> chunks;
  if (const auto* box_range = std::get_if<BoxRange>(&part)) {
    if (box_range->box.lengths.empty()) return {{box_range->box, 0}};
    split_range(box_range->box, 0, box_range->begin, box_range->end, chunks);
    return chunks;
  }
  const Box full = full_box(shape);
  const auto* range = std::get_if<FlatRange>(&part);
  if (range == nullptr || shape.empty()) return {{full, 0}};
  split_range(full, 0, range->begin, range->end, chunks);
  return chunks;
}

Region canonical(const Region& part, std::span<const std::int64_t> shape) {
  const std::vector<Chunk> chunks = chunks_of(part, shape);
  if (chunks.size() == 1) return chunks[0].box;
  if (chunks.empty() && !std::holds_alternative<Box>(part)) return FlatRange{0, 0};
  return part;
}

std::string region_problem(const Region& part, std::span<const std::int64_t> shape) {
  if (const auto* box = std::get_if<Box>(&part)) {
    if (box->offsets.size() != shape.size() || box->lengths.size() != shape.size()) {
      return "the region " + to_string(part) + " does not have the dims of the tensor";
    }
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const std::int64_t offset = box->offsets[d], length = box->lengths[d];
      if (offset < 0 || length < 0 || offset > shape[d] || length > shape[d] - offset) {
        return "the region " + to_string(part) + " is outside the tensor";
      }
    }
  }
  if (const auto* box_range = std::get_if<BoxRange>(&part)) {
    std::string problem = region_problem(box_range->box, shape);
    if (!problem.empty()) return problem;
    if (box_range->begin < 0 || box_range->end < box_range->begin ||
        box_range->end > numel_of(box_range->box.lengths))
      return "the region " + to_string(part) + " is outside the tensor";
  }
  if (const auto* range = std::get_if<FlatRange>(&part)) {
    if (range->begin < 0 || range->end < range->begin || range->end > numel_of(shape)) {
      return "the region " + to_string(part) + " is outside the tensor";
    }
  }
  return {};
}

std::int64_t numel_of(const Region& part, std::span<const std::int64_t> shape) {
  if (const auto* box = std::get_if<Box>(&part)) return numel_of(box->lengths);
  if (const auto* range = std::get_if<FlatRange>(&part)) return range->end - range->begin;
  if (const auto* box_range = std::get_if<BoxRange>(&part)) return box_range->end - box_range->begin;
  return numel_of(shape);
}

std::string to_string(const Region& part) {
  if (const auto* range = std::get_if<FlatRange>(&part)) {
    return str_cat("[flat ", range->begin, ":", range->end, "]");
  }
  if (const auto* box_range = std::get_if<BoxRange>(&part))
    return to_string(box_range->box) + to_string(FlatRange{box_range->begin, box_range->end});
  const auto* box = std::get_if<Box>(&part);
  if (box == nullptr) return "[:]";
  std::string text = "[";
  for (std::size_t d = 0; d < box->offsets.size() && d < box->lengths.size(); ++d) {
    text += str_cat((d > 0 ? ", " : ""), box->offsets[d], ":", box->offsets[d] + box->lengths[d]);
  }
  return text + "]";
}

std::vector<RegionChunk> sorted_chunks(const std::vector<Region>& parts,
                                       std::span<const std::int64_t> shape) {
  std::vector<RegionChunk> chunks;
  for (std::size_t i = 0; i < parts.size(); ++i)
    for (Chunk& chunk : chunks_of(parts[i], shape)) chunks.push_back({std::move(chunk), i});
  std::stable_sort(chunks.begin(), chunks.end(), [](const RegionChunk& a, const RegionChunk& b) {
    return a.chunk.box.offsets < b.chunk.box.offsets;
  });
  return chunks;
}

std::optional<std::int64_t> uncovered(std::span<const std::int64_t> shape, const std::vector<Region>& parts) {
  constexpr std::size_t work_limit = 4'000'000;  // about 1 s; thousands of ranks need 1% of it
  std::size_t work = 0;
  std::vector<Box> missing;
  if (numel_of(shape) > 0) missing.push_back(full_box(shape));
  for (const RegionChunk& part : sorted_chunks(parts, shape)) {
    work += missing.size();
    if (work > work_limit) return std::nullopt;
    std::vector<Box> rest;
    for (Box& box : missing) subtract(std::move(box), part.chunk.box, rest);
    missing = std::move(rest);
  }
  std::int64_t count = 0;
  for (const Box& box : missing) count += numel_of(box.lengths);
  return count;
}

}  // namespace penstock::checkpoint
