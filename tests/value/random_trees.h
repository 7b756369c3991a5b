// Value trees, fixed and random, for the sweeps of this module.
#pragma once

#include <torch/types.h>

#include <random>
#include <string>
#include <vector>

namespace penstock::test {

inline c10::IValue tuple(std::vector<c10::IValue> items) {
  return c10::ivalue::Tuple::create(std::move(items));
}

inline c10::IValue dict(const std::vector<std::pair<std::string, c10::IValue>>& items) {
  c10::impl::GenericDict result(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : items) result.insert(key, value);
  return result;
}

using Random = std::mt19937_64;

inline std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline at::Tensor random_tensor(Random& random) {
  std::vector<std::int64_t> shape(pick(random, 0, 3));
  for (std::int64_t& size : shape) size = pick(random, 0, 4);
  const at::ScalarType dtypes[] = {at::kFloat, at::kDouble,   at::kLong, at::kBool,
                                   at::kHalf,  at::kBFloat16, at::kByte};
  at::Tensor tensor = torch::empty(shape, torch::TensorOptions().dtype(dtypes[pick(random, 0, 6)]));
  if (tensor.scalar_type() == at::kBool) {
    tensor.fill_(pick(random, 0, 1) != 0);
  } else {
    tensor.fill_(pick(random, 0, 100));
  }
  if (tensor.is_floating_point() && pick(random, 0, 1) != 0) tensor.set_requires_grad(true);
  return tensor;
}

inline c10::IValue random_leaf(Random& random) {
  switch (pick(random, 0, 7)) {
    case 0:
      return {};
    case 1:
      return pick(random, 0, 1) != 0;
    case 2:
      return pick(random, INT64_MIN, INT64_MAX);
    case 3:
      return static_cast<double>(pick(random, -100, 100)) / 7;
    case 4:
      return std::string(static_cast<std::size_t>(pick(random, 0, 5)), 'x');
    case 5:
      return c10::complex<double>(1.5, -2);
    default:
      return random_tensor(random);
  }
}

inline c10::IValue random_tree(Random& random, int depth) {
  if (depth == 0) return random_leaf(random);
  const std::int64_t size = pick(random, 0, 3);
  switch (pick(random, 0, 4)) {
    case 0: {
      std::vector<c10::IValue> items;
      for (std::int64_t i = 0; i < size; ++i) items.push_back(random_tree(random, depth - 1));
      return c10::ivalue::Tuple::create(std::move(items));
    }
    case 1: {
      c10::List<c10::IValue> list(c10::AnyType::get());
      for (std::int64_t i = 0; i < size; ++i) list.push_back(random_tree(random, depth - 1));
      return list;
    }
    case 2: {
      c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
      for (std::int64_t i = size; i-- > 0;)
        dict.insert("k" + std::to_string(i), random_tree(random, depth - 1));
      return dict;
    }
    case 3: {
      c10::List<std::int64_t> list;
      for (std::int64_t i = 0; i < size; ++i) list.push_back(pick(random, -9, 9));
      return list;
    }
    default:
      return random_leaf(random);
  }
}

}  // namespace penstock::test
