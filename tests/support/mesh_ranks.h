// Thread ranks with a mesh, for the tests of distributed tensors.
#pragma once

#include <penstock/comm/thread_ranks.h>
#include <penstock/tensor/dtensor.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

namespace penstock::test {

inline void on_mesh(std::vector<std::int64_t> shape,
                    const std::function<void(const tensor::DeviceMesh&)>& body) {
  int ranks = 1;
  for (const std::int64_t n : shape) ranks *= static_cast<int>(n);
  comm::run_thread_ranks(ranks, [&](comm::World& world) {
    std::vector<std::string> names{"x", "y", "z"};
    names.resize(shape.size());
    body(tensor::DeviceMesh(world.group(), shape, names));
  });
}

//! Values that depend neither on the rank nor on libtorch's generators.
inline at::Tensor numbers(c10::IntArrayRef sizes, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  at::Tensor result = at::empty(sizes);
  auto* data = result.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < result.numel(); ++i) data[i] = normal(engine);
  return result;
}

//! A full copy of a plain or distributed tensor; undefined stays undefined.
inline at::Tensor full_copy(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return (tensor::is_dtensor(tensor) ? tensor::full_tensor(tensor) : tensor).detach().clone();
}

inline double difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e30;
  return a.numel() == 0 ? 0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace penstock::test
