// Random numbers by element index: element i of draw k of a seed is a function of (seed, k, i) on every rank.
#pragma once

#include "tensor/layout/layout.h"

#include <ATen/core/Tensor.h>

#include <variant>

namespace penstock::tensor {

struct Uniform {
  double from, to;
};
struct Normal {
  double mean, deviation;
};
struct Bernoulli {
  double p;
};
struct Integers {
  std::int64_t from, to;  //!< `to` is exclusive
};
using Distribution = std::variant<Uniform, Normal, Bernoulli, Integers>;

//! The key of a draw from a seed.
std::uint64_t draw_key(std::uint64_t seed, std::uint64_t draw);
//! The key of the mesh's next draw.
std::uint64_t next_key(DeviceMesh::Impl& mesh);

//! Fills this rank's local shard of a tensor of these global sizes.
void fill_random(const at::Tensor& local, c10::IntArrayRef sizes, const Placements& placements,
                 const DeviceMesh::Impl& mesh, std::uint64_t key, const Distribution& distribution);

}  // namespace penstock::tensor
