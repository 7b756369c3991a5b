// Operators on distributed tensors compared with dense tensors: values and gradients, for every placement.
#include "support/mesh_ranks.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

namespace penstock::test {
namespace {

using Shape = std::vector<std::int64_t>;
using Inputs = std::vector<at::Tensor>;

struct Case {
  std::string name;
  std::vector<Shape> shapes;
  std::function<at::Tensor(const Inputs&)> run;
};

std::vector<Case> cases() {
  namespace F = torch::nn::functional;
  const at::Tensor index = at::arange(12, at::kLong).remainder(5).view({3, 4});
  const at::Tensor rows = at::tensor({0, 2, 1, 2}, at::kLong);
  const at::Tensor targets = at::tensor({3, 0, 5, 2, -100, 1}, at::kLong);
  const at::Tensor weights = at::tensor({1.0F, 0.5F, 2.0F, 1.0F, 3.0F, 0.25F, 1.5F});
  return {
      {"add", {{4, 6}, {4, 6}}, [](const Inputs& x) { return x[0] + x[1]; }},
      {"broadcast", {{4, 6}, {6}}, [](const Inputs& x) { return x[0] * x[1] - 2 * x[1] + 1; }},
      {"broadcast column", {{4, 6}, {4, 1}}, [](const Inputs& x) { return x[0] / (x[1].exp() + 1); }},
      {"unary",
       {{5, 3}},
       [](const Inputs& x) { return at::gelu(x[0]).tanh() + x[0].sigmoid() * torch::silu(x[0]); }},
      {"relu", {{5, 3}}, [](const Inputs& x) { return torch::relu(x[0]); }},
      {"where", {{4, 6}, {4, 6}}, [](const Inputs& x) { return at::where(x[0] > 0, x[0], x[1]); }},
      {"masked fill", {{4, 6}}, [](const Inputs& x) { return x[0].masked_fill(x[0] > 0.5, -1.0); }},
      {"in place",
       {{4, 6}, {4, 6}},
       [](const Inputs& x) {
         at::Tensor y = x[0] * 2;
         y += x[1];
         y.mul_(x[1]).add_(1);
         return y;
       }},
      {"mm", {{4, 6}, {6, 5}}, [](const Inputs& x) { return x[0].mm(x[1]); }},
      {"addmm", {{5}, {4, 6}, {6, 5}}, [](const Inputs& x) { return at::addmm(x[0], x[1], x[2]); }},
      {"matmul 3-D", {{2, 5, 6}, {6, 4}}, [](const Inputs& x) { return x[0].matmul(x[1]); }},
      {"batched", {{2, 4, 3, 6}, {2, 4, 6, 5}}, [](const Inputs& x) { return x[0].matmul(x[1]); }},
      {"batch broadcast", {{4, 3, 6}, {2, 4, 6, 5}}, [](const Inputs& x) { return x[0].matmul(x[1]); }},
      {"vector", {{4, 6}, {6}}, [](const Inputs& x) { return x[0].matmul(x[1]); }},
      {"bmm", {{4, 3, 6}, {4, 6, 5}}, [](const Inputs& x) { return x[0].bmm(x[1]); }},
      {"linear", {{2, 5, 6}, {4, 6}, {4}}, [](const Inputs& x) { return F::linear(x[0], x[1], x[2]); }},
      {"at::linear", {{2, 5, 6}, {4, 6}, {4}}, [](const Inputs& x) { return at::linear(x[0], x[1], x[2]); }},
      {"sum all", {{5, 6}}, [](const Inputs& x) { return (x[0] * x[0]).sum(); }},
      {"sum dim",
       {{5, 6, 2}},
       [](const Inputs& x) { return x[0].sum({1}) + x[0].sum({1}, true).squeeze(1); }},
      {"mean", {{5, 6}}, [](const Inputs& x) { return x[0].mean() + x[0].mean(1).mean(); }},
      {"amax", {{4, 8}}, [](const Inputs& x) { return x[0].amax({1}) + x[0].amin({0}).sum(); }},
      {"max dim", {{5, 6}}, [](const Inputs& x) { return std::get<0>(x[0].max(1)); }},
      {"var", {{5, 6}}, [](const Inputs& x) { return x[0].var(1) + x[0].norm(); }},
      {"softmax", {{5, 6}}, [](const Inputs& x) { return at::softmax(x[0], 1) * x[0]; }},
      {"log softmax", {{5, 6}}, [](const Inputs& x) { return at::log_softmax(x[0], -1) * x[0]; }},
      {"cross entropy", {{6, 7}}, [=](const Inputs& x) { return F::cross_entropy(x[0], targets); }},
      {"cross entropy weighted",
       {{6, 7}},
       [=](const Inputs& x) {
         return F::cross_entropy(x[0], targets,
                                 F::CrossEntropyFuncOptions().weight(weights).reduction(torch::kSum));
       }},
      {"cross entropy rows",
       {{6, 7}},
       [=](const Inputs& x) {
         return F::cross_entropy(x[0], targets, F::CrossEntropyFuncOptions().reduction(torch::kNone));
       }},
      {"layer norm",
       {{2, 5, 6}, {6}, {6}},
       [](const Inputs& x) { return at::layer_norm(x[0], {6}, x[1], x[2]); }},
      {"rms norm", {{2, 5, 6}, {6}}, [](const Inputs& x) { return at::rms_norm(x[0], {6}, x[1]); }},
      {"embedding", {{5, 6}}, [=](const Inputs& x) { return at::embedding(x[0], index); }},
      {"view",
       {{4, 6}},
       [](const Inputs& x) {
         return (x[0] * 2).view({2, 2, 6}).view({4, 2, 3}).reshape({-1});
       }},
      {"heads",
       {{2, 5, 8}},
       [](const Inputs& x) {
         return x[0].view({2, 5, 4, 2}).transpose(1, 2).contiguous().view({2, 4, 10});
       }},
      {"transpose",
       {{4, 6, 3}},
       [](const Inputs& x) {
         return x[0].transpose(0, 2).permute({1, 0, 2}) * 3;
       }},
      {"slice",
       {{6, 8}},
       [](const Inputs& x) {
         return x[0].slice(0, 1, 5).slice(1, 0, 8, 2).exp() + x[0].select(1, 3).slice(0, 0, 4).unsqueeze(1);
       }},
      {"split",
       {{4, 6}},
       [](const Inputs& x) {
         const auto parts = x[0].chunk(3, 1);
         return parts[0] * parts[2] + parts[1].flip({0});
       }},
      {"unbind",
       {{3, 4, 6}},
       [](const Inputs& x) {
         const auto parts = x[0].unbind(0);
         return parts[0] * parts[1] + parts[2];
       }},
      {"cat",
       {{4, 6}, {2, 6}},
       [](const Inputs& x) {
         return at::cat({x[0], x[1]}, 0) * 2;
       }},
      {"stack",
       {{4, 6}, {4, 6}},
       [](const Inputs& x) {
         return at::stack({x[0], x[1]}, 1).pow(2);
       }},
      {"expand",
       {{4, 1, 6}},
       [](const Inputs& x) {
         return x[0].expand({4, 3, 6}).exp();
       }},
      {"repeat",
       {{4, 6}},
       [](const Inputs& x) {
         return x[0].repeat({1, 2}) * 2;
       }},
      {"gather", {{3, 6}}, [=](const Inputs& x) { return x[0].gather(1, index); }},
      {"index select", {{4, 6}}, [=](const Inputs& x) { return x[0].index_select(0, rows); }},
      {"index", {{4, 6}}, [=](const Inputs& x) { return x[0].index({rows}); }},
      {"tril", {{4, 5, 5}}, [](const Inputs& x) { return x[0].tril(); }},
      {"cumsum", {{4, 6}}, [](const Inputs& x) { return x[0].cumsum(1); }},
      {"attention",
       {{2, 4, 5, 8}, {2, 4, 5, 8}, {2, 4, 5, 8}},
       [](const Inputs& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true); }},
      {"to double", {{4, 6}}, [](const Inputs& x) { return x[0].to(at::kDouble) * 2; }},
  };
}

//! The placements of a tensor with that many dims over one axis: a shard of each dim, Replicate, Partial.
unsigned num_placements(const Shape& shape) {
  return static_cast<unsigned>(shape.size()) + 2;
}
tensor::AxisPlacement placement(const Shape& shape, unsigned index) {
  if (index < shape.size()) return tensor::Shard(static_cast<int>(index));
  if (index == shape.size()) return tensor::Replicate();
  return tensor::Partial();
}

void check(const Case& c, const tensor::DeviceMesh& mesh, const std::vector<tensor::Placements>& layouts,
           unsigned seed) {
  Inputs dense, distributed;
  std::string layout;
  for (std::size_t i = 0; i < c.shapes.size(); ++i) {
    dense.push_back(numbers(c.shapes[i], seed * 10 + static_cast<unsigned>(i)).set_requires_grad(true));
    layout += " " + to_string(layouts[i]);
    distributed.push_back(distribute_tensor(dense.back(), mesh, layouts[i], false));
  }
  const std::string where = c.name + layout + " on " + to_string(mesh) + ", seed " + std::to_string(seed);
  try {
    const at::Tensor want = c.run(dense), got = c.run(distributed);
    ASSERT_TRUE(tensor::is_dtensor(got)) << where;
    ASSERT_EQ(got.sizes(), want.sizes()) << where;
    ASSERT_LT(difference(tensor::full_tensor(got).detach(), want.detach()), 2e-5)
        << where << " gives " << to_string(tensor::placements_of(got));
    const at::Tensor weight = numbers(want.sizes(), seed + 5).to(want.scalar_type());
    (want * weight).sum().backward();
    (got * weight).sum().backward();
    for (std::size_t i = 0; i < distributed.size(); ++i) {
      ASSERT_TRUE(tensor::is_dtensor(distributed[i].grad())) << where;
      ASSERT_LT(difference(tensor::full_tensor(distributed[i].grad()), dense[i].grad()), 5e-5)
          << where << " gradient " << i;
    }
    const torch::InferenceMode inference;
    ASSERT_LT(difference(tensor::full_tensor(c.run(distributed)), want), 2e-5)
        << where << " in inference mode";
  } catch (const std::exception& e) {
    throw std::runtime_error(where + ": " + e.what());
  }
}

void check_random(const Case& c, const tensor::DeviceMesh& mesh, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<tensor::Placements> layouts(c.shapes.size());
  for (std::size_t i = 0; i < c.shapes.size(); ++i) {
    for (int axis = 0; axis < mesh.ndim(); ++axis)
      layouts[i].push_back(
          placement(c.shapes[i], static_cast<unsigned>(engine()) % num_placements(c.shapes[i])));
  }
  check(c, mesh, layouts, seed);
}

//! All combinations of placements of the inputs over a mesh with one axis.
void check_every_placement(const Case& c, const tensor::DeviceMesh& mesh) {
  unsigned combinations = 1;
  for (const Shape& shape : c.shapes) combinations *= num_placements(shape);
  for (unsigned n = 0; n < combinations; ++n) {
    std::vector<tensor::Placements> layouts;
    unsigned rest = n;
    for (const Shape& shape : c.shapes) {
      layouts.push_back({placement(shape, rest % num_placements(shape))});
      rest /= num_placements(shape);
    }
    check(c, mesh, layouts, n);
  }
}

//! Runs the function on a mesh for each operator.
void for_each_case(const Shape& shape,
                   const std::function<void(const Case&, const tensor::DeviceMesh&)>& run) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    try {
      on_mesh(shape, [&](const tensor::DeviceMesh& mesh) { run(c, mesh); });
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
  }
}

// Four rows over three ranks leave one rank with an empty shard. Its gradient must take the same code path as
// the others.
TEST(TensorOps, MatchDenseWithEmptyShard) {
  const std::vector<Case> all = cases();
  const auto linear = std::find_if(all.begin(), all.end(), [](const Case& c) { return c.name == "linear"; });
  ASSERT_NE(linear, all.end());
  on_mesh({2, 3}, [&](const tensor::DeviceMesh& mesh) {
    check(*linear, mesh,
          {{tensor::Partial(), tensor::Replicate()},
           {tensor::Replicate(), tensor::Shard(0)},
           {tensor::Shard(0), tensor::Partial()}},
          26);
  });
}

TEST(TensorOps, MatchDenseForEveryPlacement) {
  for_each_case({2}, check_every_placement);
}

TEST(TensorOps, MatchDenseForRandomPlacements) {
  const bool long_sweep = std::getenv("PENSTOCK_LONG_SWEEP") != nullptr;
  const unsigned seeds = long_sweep ? 40 : 4;
  std::vector<Shape> meshes{{4}, {2, 2}};
  if (long_sweep) meshes.insert(meshes.end(), {{3}, {2, 3}, {2, 2, 2}});
  unsigned first = 0;
  for (const Shape& shape : meshes) {
    std::printf("seeds %u to %u\n", first, first + seeds - 1);
    for_each_case(shape, [&](const Case& c, const tensor::DeviceMesh& mesh) {
      for (unsigned seed = first; seed < first + seeds; ++seed) check_random(c, mesh, seed);
    });
    first += seeds;
  }
}

}  // namespace
}  // namespace penstock::test
