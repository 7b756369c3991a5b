// Uses one block of the Philox counter-based generator per element.
#include "tensor/rules/random_draws.h"

#include <penstock/base/error.h>

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>

namespace penstock::tensor {
namespace {

double unit(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32U) | low;
  return static_cast<double>(bits >> 11U) * 0x1p-53;
}

struct Draw {
  std::uint32_t a, b, c, d;

  double operator()(const Uniform& u) const { return u.from + (u.to - u.from) * unit(a, b); }
  double operator()(const Normal& n) const {
    const double radius = std::sqrt(-2 * std::log(1 - unit(a, b)));
    return n.mean + n.deviation * radius * std::cos(2 * std::numbers::pi * unit(c, d));
  }
  double operator()(const Bernoulli& draw) const { return unit(a, b) < draw.p ? 1 : 0; }
  double operator()(const Integers& i) const {
    return static_cast<double>(i.from) + std::floor(static_cast<double>(i.to - i.from) * unit(a, b));
  }
};

Draw draw(std::uint64_t key, std::uint64_t element) {
  at::Philox4_32 engine(key, element, 0);
  const std::uint32_t a = engine(), b = engine(), c = engine(), d = engine();
  return {a, b, c, d};
}

}  // namespace

std::uint64_t next_key(DeviceMesh::Impl& mesh) {
  return draw_key(mesh.seed.load(), mesh.draws++);
}

std::uint64_t draw_key(std::uint64_t seed, std::uint64_t draw) {
  // splitmix64 over seed and draw.
  std::uint64_t z = seed * 0x9e3779b97f4a7c15ULL + draw + 0x632be59bd9b4e019ULL;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

void fill_random(const at::Tensor& local, c10::IntArrayRef sizes, const Placements& placements,
                 const DeviceMesh::Impl& mesh, std::uint64_t key, const Distribution& distribution) {
  for (const AxisPlacement& placement : placements) {
    if (placement.is_partial()) {
      throw UsageError("random numbers cannot be drawn with placement " + to_string(placement), {},
                       "use Replicate or Shard");
    }
  }
  const std::size_t dims = sizes.size();
  Sizes start(dims, 0), strides(dims, 0), at(dims, 0);
  std::int64_t stride = 1;
  for (std::size_t i = dims; i-- > 0;) {
    start[i] = interval_of(sizes[i], static_cast<std::int64_t>(i), placements, mesh).start;
    strides[i] = stride;
    stride *= sizes[i];
  }
  const bool narrow = local.is_floating_point();
  // The host cannot write to the memory of a device.
  const at::Tensor values = at::empty(local.sizes(), at::kDouble);
  auto* out = values.mutable_data_ptr<double>();
  const std::int64_t count = local.numel();
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t element = 0;
    for (std::size_t i = 0; i < dims; ++i) element += (start[i] + at[i]) * strides[i];
    out[n] = std::visit(draw(key, static_cast<std::uint64_t>(element)), distribution);
    for (std::size_t i = dims; i-- > 0;) {
      if (++at[i] < local.size(static_cast<std::int64_t>(i))) break;
      at[i] = 0;
    }
  }
  if (local.is_cpu()) {
    local.copy_(values);
  } else {
    local.copy_(values.to(local.scalar_type()), /*non_blocking=*/true);
  }
  // Rounding to a narrower type can reach the exclusive upper bound.
  if (const auto* u = std::get_if<Uniform>(&distribution);
      u && narrow && local.scalar_type() != at::kDouble && count > 0) {
    const double last = u->to - (u->to - u->from) * (local.scalar_type() == at::kFloat ? 0x1p-24 : 0x1p-8);
    local.clamp_max_(last);
  }
}

}  // namespace penstock::tensor
