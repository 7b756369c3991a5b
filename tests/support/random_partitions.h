// Random distributions of tensors over ranks: full tensors, slices, flat ranges, subsets of ranks, replicas.
#pragma once

#include <penstock/checkpoint/piece.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <random>
#include <vector>

namespace penstock::test {

using Random = std::mt19937;

inline std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

//! Sorted positions that divide 0 … size into `parts` intervals, some of them empty.
inline std::vector<std::int64_t> random_boundaries(Random& random, std::int64_t size, int parts) {
  std::vector<std::int64_t> at = {0, size};
  for (int i = 1; i < parts; ++i) at.push_back(pick(random, 0, size));
  std::sort(at.begin(), at.end());
  return at;
}

//! Returns a copy of the elements of a region.
inline at::Tensor take(const at::Tensor& full, const checkpoint::Region& part) {
  if (const auto* range = std::get_if<checkpoint::FlatRange>(&part))
    return full.flatten().slice(0, range->begin, range->end).clone();
  if (const auto* flat = std::get_if<checkpoint::BoxRange>(&part))
    return take(full, flat->box).flatten().slice(0, flat->begin, flat->end).clone();
  at::Tensor taken = full;
  if (const auto* box = std::get_if<checkpoint::Box>(&part)) {
    for (std::size_t d = 0; d < box->offsets.size(); ++d) {
      taken = taken.narrow(static_cast<std::int64_t>(d), box->offsets[d], box->lengths[d]);
    }
  }
  return taken.clone();
}

//! Regions that together cover the tensor, listed per rank.
inline std::vector<std::vector<checkpoint::Region>> partition(Random& random,
                                                              const std::vector<std::int64_t>& shape,
                                                              int ranks) {
  std::vector<std::vector<checkpoint::Region>> parts(static_cast<std::size_t>(ranks));
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) numel *= size;
  const auto any_rank = [&]() -> std::vector<checkpoint::Region>& {
    return parts[static_cast<std::size_t>(pick(random, 0, ranks - 1))];
  };
  switch (shape.empty() ? pick(random, 0, 1) : pick(random, 0, 4)) {
    case 0:  // one rank has it: a pipeline's stage
      any_rank().push_back(checkpoint::FullTensor{});
      break;
    case 1:  // all have it: replicas
      for (auto& mine : parts) mine.push_back(checkpoint::FullTensor{});
      break;
    case 2: {  // one flat range per rank
      const auto at = random_boundaries(random, numel, ranks);
      for (int r = 0; r < ranks; ++r)
        parts[static_cast<std::size_t>(r)].push_back(
            checkpoint::FlatRange{at[static_cast<std::size_t>(r)], at[static_cast<std::size_t>(r) + 1]});
      break;
    }
    case 3: {  // one slice of a dim per rank
      const auto dim = static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(shape.size()) - 1));
      const auto at = random_boundaries(random, shape[dim], ranks);
      for (std::size_t r = 0; r < parts.size(); ++r) {
        checkpoint::Box box{std::vector<std::int64_t>(shape.size(), 0), shape};
        box.offsets[dim] = at[r];
        box.lengths[dim] = at[r + 1] - at[r];
        parts[r].push_back(box);
      }
      break;
    }
    default: {  // a grid of boxes, each on one rank and sometimes replicated on a second one
      std::vector<checkpoint::Box> boxes = {{std::vector<std::int64_t>(shape.size(), 0), shape}};
      for (std::size_t d = 0; d < shape.size(); ++d) {
        const auto at = random_boundaries(random, shape[d], static_cast<int>(pick(random, 1, 3)));
        std::vector<checkpoint::Box> finer;
        for (const checkpoint::Box& box : boxes) {
          for (std::size_t i = 0; i + 1 < at.size(); ++i) {
            finer.push_back(box);
            finer.back().offsets[d] = at[i];
            finer.back().lengths[d] = at[i + 1] - at[i];
          }
        }
        boxes = std::move(finer);
      }
      for (const checkpoint::Box& box : boxes) {
        if (pick(random, 0, 3) == 0) {  // or divided further, into ranges
          std::int64_t count = 1;
          for (const std::int64_t length : box.lengths) count *= length;
          const auto at = random_boundaries(random, count, 2);
          any_rank().push_back(checkpoint::BoxRange{box, at[0], at[1]});
          any_rank().push_back(checkpoint::BoxRange{box, at[1], at[2]});
          continue;
        }
        any_rank().push_back(box);
        if (pick(random, 0, 2) == 0) any_rank().push_back(box);
      }
    }
  }
  return parts;
}

//! The pieces of one rank, filled from the full tensor or, with `zero`, ready to be loaded into.
inline std::vector<checkpoint::Piece> pieces_of(const std::string& name, const at::Tensor& full,
                                                const std::vector<checkpoint::Region>& parts,
                                                bool zero = false) {
  std::vector<checkpoint::Piece> pieces;
  for (const checkpoint::Region& part : parts) {
    at::Tensor local = take(full, part);
    pieces.push_back({.name = name,
                      .shape = full.sizes().vec(),
                      .local = zero ? at::zeros_like(local) : local,
                      .region = part});
  }
  return pieces;
}

}  // namespace penstock::test
