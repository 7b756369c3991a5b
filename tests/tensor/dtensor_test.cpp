// Meshes, placements and redistribution, compared with the full tensor that every rank knows.
#include "support/error_message.h"
#include "support/mesh_ranks.h"
#include "tensor/layout/mesh_impl.h"

#include <penstock/base/error.h>

#include <gmock/gmock.h>
#include <torch/torch.h>

namespace penstock::test {
namespace {

using Shape = std::vector<std::int64_t>;

//! All layouts of a tensor of `dims` dims on a mesh of `axes` axes.
std::vector<tensor::Placements> layouts(int dims, int axes, bool partial) {
  std::vector<tensor::AxisPlacement> one{tensor::Replicate()};
  for (int d = 0; d < dims; ++d) one.emplace_back(tensor::Shard(d));
  if (partial) one.emplace_back(tensor::Partial());
  std::vector<tensor::Placements> all{{}};
  for (int axis = 0; axis < axes; ++axis) {
    std::vector<tensor::Placements> next;
    for (const tensor::Placements& before : all) {
      for (const tensor::AxisPlacement& placement : one) {
        next.push_back(before);
        next.back().push_back(placement);
      }
    }
    all = next;
  }
  return all;
}

TEST(TensorMesh, HasCoordinatesGroupsAndSubmeshes) {
  on_mesh({2, 3}, [](const tensor::DeviceMesh& mesh) {
    const auto me = mesh.all().rank();
    EXPECT_EQ(mesh.coordinate(0), me / 3);
    EXPECT_EQ(mesh.coordinate(1), me % 3);
    EXPECT_EQ(mesh.group("x").size(), 2);
    EXPECT_EQ(mesh.group("y").rank(), me % 3);
    const tensor::DeviceMesh row = mesh["y"];
    EXPECT_THAT(row.ranks(),
                testing::ElementsAre(Rank(me / 3 * 3), Rank(me / 3 * 3 + 1), Rank(me / 3 * 3 + 2)));
    EXPECT_EQ(tensor::Access::impl(row), tensor::Access::impl(mesh["y"]));
    EXPECT_EQ(to_string(mesh), "DeviceMesh(x=2, y=3)");
    EXPECT_ERROR(mesh.axis("w"), UsageError, "has no axis 'w'");
    const at::Tensor one = at::ones({1});
    mesh.group(0).all_reduce(one);
    EXPECT_EQ(one.item<float>(), 2);
    EXPECT_EQ(mesh.flatten("all").size(0), 6);
  });
  EXPECT_ERROR(on_mesh({2}, [](const tensor::DeviceMesh& mesh) { tensor::DeviceMesh(mesh.all(), {3}); }),
               UsageError, "a mesh with shape 3 does not match the 2 ranks");
}

TEST(TensorDTensor, RedistributionKeepsValueAndGradient) {
  for (const Shape& shape : {Shape{2}, Shape{4}, Shape{2, 2}}) {
    on_mesh(shape, [&](const tensor::DeviceMesh& mesh) {
      for (const Shape& sizes : {Shape{8, 4}, Shape{5, 3}, Shape{1, 7}}) {
        const at::Tensor dense = numbers(sizes, 1), weight = numbers(sizes, 2);
        const auto all = layouts(2, mesh.ndim(), true);
        for (const tensor::Placements& from : all) {
          const at::Tensor a = distribute_tensor(dense, mesh, from, false).set_requires_grad(true);
          ASSERT_LT(difference(tensor::full_tensor(a).detach(), dense), 1e-6) << to_string(from);
          for (const tensor::Placements& to : all) {
            const at::Tensor b = redistribute(a, to);
            ASSERT_EQ(tensor::placements_of(b), to);
            ASSERT_LT(difference(tensor::full_tensor(b).detach(), dense), 1e-6)
                << to_string(from) << " to " << to_string(to);
            a.mutable_grad() = at::Tensor();
            (tensor::full_tensor(b) * weight).sum().backward();
            ASSERT_LT(difference(tensor::full_tensor(a.grad()), weight), 1e-6)
                << to_string(from) << " to " << to_string(to);
          }
        }
      }
    });
  }
}

TEST(TensorDTensor, ConvertsToAndFromLocalShardsWithGradients) {
  on_mesh({3}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor dense = numbers({7, 2}, 3);
    const at::Tensor shard = dense.chunk(3)[mesh.coordinate(0)].clone().set_requires_grad(true);
    const at::Tensor d = from_local(shard, mesh, {tensor::Shard(0)}, Shape{7, 2});
    EXPECT_EQ(d.sizes(), (Shape{7, 2}));
    const at::Tensor local = tensor::to_local(d * 2);
    EXPECT_LT(difference(local.detach(), shard.detach() * 2), 1e-6);
    local.pow(2).sum().backward();
    EXPECT_LT(difference(shard.grad(), shard.detach() * 8), 1e-5);

    // An average: the contribution of each rank counts one third.
    const at::Tensor mine = at::full({2}, static_cast<float>(mesh.coordinate(0))).set_requires_grad(true);
    const at::Tensor mean =
        tensor::full_tensor(from_local(mine, mesh, {tensor::Partial(comm::ReduceOp::Avg)}));
    EXPECT_LT(difference(mean.detach(), at::ones({2})), 1e-6);
    mean.sum().backward();
    EXPECT_LT(difference(mine.grad(), at::full({2}, 1.0 / 3)), 1e-6);
    for (const auto& [op, want] :
         {std::pair{comm::ReduceOp::Max, 2.0}, std::pair{comm::ReduceOp::Min, 0.0}}) {
      EXPECT_EQ(tensor::full_tensor(from_local(mine.detach(), mesh, {tensor::Partial(op)}))[0].item<double>(),
                want);
    }
  });
}

TEST(TensorDTensor, ReportsInvalidUse) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    EXPECT_ERROR(distribute_tensor(at::ones({2}), mesh, {tensor::Shard(1)}), UsageError,
                 "a tensor of 1 dims cannot be sharded along dim 1");
    EXPECT_ERROR(distribute_tensor(at::ones({2}), mesh, {tensor::Shard(0), tensor::Shard(0)}), UsageError,
                 "the mesh has 1 axes, but there are 2 placements");
    EXPECT_ERROR(from_local(at::ones({2}), mesh, {tensor::Shard(0)}, Shape{7}), ShapeError,
                 "the local shard has sizes [2], but a tensor of [7]");
    EXPECT_ERROR(tensor::to_local(at::ones({2})), UsageError, "needs a distributed tensor");
    const at::Tensor d = distribute_tensor(numbers({4, 4}, 1), mesh, {tensor::Shard(0)});
    EXPECT_ANY_THROW(d.data_ptr());
    try {
      at::linalg_inv(d);
      FAIL();
    } catch (const UsageError& e) {
      EXPECT_NE(std::string(e.what()).find("Shard(0)"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("linalg"), std::string::npos) << e.what();
    }
    const tensor::ReplicateUnknownOps allowed;
    EXPECT_LT(difference(tensor::full_tensor(at::linalg_inv(d)), at::linalg_inv(numbers({4, 4}, 1))), 1e-4);
  });
}

TEST(TensorDTensor, RandomNumbersDoNotDependOnMesh) {
  std::vector<at::Tensor> seen;
  for (const Shape& shape : {Shape{1}, Shape{2}, Shape{2, 2}}) {
    std::vector<at::Tensor> mine(4);
    on_mesh(shape, [&](tensor::DeviceMesh mesh) {
      mesh.manual_seed(7);
      tensor::Placements placements(shape.size(), tensor::Shard(0));
      if (shape.size() == 2) placements[1] = tensor::Shard(1);
      const at::Tensor a = distributed_rand({5, 6}, mesh, placements);
      const at::Tensor b = distributed_randn({5, 6}, mesh, tensor::Placements(shape.size()));
      const at::Tensor c = torch::dropout(distributed_ones({5, 6}, mesh, placements), 0.5, true);
      const at::Tensor d = at::randn_like(a);
      const std::vector<at::Tensor> all{tensor::full_tensor(a), tensor::full_tensor(b),
                                        tensor::full_tensor(c), tensor::full_tensor(d)};
      if (mesh.all().rank() == 0) mine = all;
    });
    if (seen.empty()) seen = mine;
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(seen[i], mine[i])) << i;
    EXPECT_FALSE(at::equal(mine[1], mine[3]));
    EXPECT_TRUE(((mine[2] == 0) | (mine[2] == 2)).all().item<bool>());
  }
}

TEST(TensorDTensor, IsComparedByValue) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor dense = numbers({5, 4}, 1);
    const at::Tensor a = distribute_tensor(dense, mesh, {tensor::Shard(0)}, false),
                     b = distribute_tensor(dense, mesh, {tensor::Shard(1)}, false);
    EXPECT_TRUE(at::equal(a, b));
    EXPECT_TRUE(at::equal(a, dense));  // a plain tensor counts as replicated
    EXPECT_TRUE(at::allclose(a, b));
    EXPECT_TRUE((a == b).all().item<bool>());
    // A difference on the last rank only is reported on every rank.
    at::Tensor other = dense.clone();
    other[4][3] += 1;
    const at::Tensor c = distribute_tensor(other, mesh, {tensor::Shard(0)}, false);
    EXPECT_FALSE(at::equal(a, c));
    EXPECT_FALSE((a == c).all().item<bool>());
    EXPECT_EQ((a != c).sum().item<std::int64_t>(), 1);
  });
}

TEST(TensorDTensor, HasDescription) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const std::string text = tensor::to_string(distributed_ones({4, 2}, mesh, {tensor::Shard(0)}));
    EXPECT_EQ(text.substr(0, text.find('\n')), "DTensor([4, 2], Float, DeviceMesh(x=2), [Shard(0)])");
  });
}

}  // namespace
}  // namespace penstock::test
