// Regression tests of results that were once silently wrong: partial values through conversions, unreduced
// gradients, different replicas, mismatched sizes; and calls without a valid result.
#include "support/error_message.h"
#include "support/mesh_ranks.h"

#include <penstock/base/error.h>
#include <penstock/value/microbatch.h>
#include <penstock/value/tensor_meta.h>

#include <torch/torch.h>

#include <sstream>

namespace penstock::test {
namespace {

using Shape = std::vector<std::int64_t>;

//! The contribution of this rank to a partial value.
at::Tensor contribution(const tensor::DeviceMesh& mesh, const std::vector<double>& of_ranks) {
  return at::full({2}, of_ranks[static_cast<std::size_t>(mesh.coordinate(0))], at::kDouble);
}

TEST(TensorPartial, IsReducedBeforeRounding) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor sum = from_local(contribution(mesh, {0.6, 0.6}), mesh, {tensor::Partial()});
    EXPECT_EQ(tensor::full_tensor(sum.to(at::kLong))[0].item<std::int64_t>(), 1);
    EXPECT_EQ(tensor::full_tensor(sum.to(at::kInt) + 1)[0].item<int>(), 2);
    EXPECT_EQ(tensor::full_tensor(sum.sum(at::kLong)).item<std::int64_t>(), 2);
    // Linear operators keep a partial sum.
    EXPECT_TRUE(tensor::placements_of(sum.to(at::kFloat))[0].is_partial());
    const at::Tensor zero = from_local(contribution(mesh, {1, -1}), mesh, {tensor::Partial()});
    EXPECT_FALSE(tensor::full_tensor(zero.to(at::kBool))[0].item<bool>());
    const at::Tensor integers =
        from_local(contribution(mesh, {3, 4}).to(at::kInt), mesh, {tensor::Partial()});
    EXPECT_TRUE(tensor::placements_of(integers.to(at::kDouble))[0].is_partial());
    EXPECT_EQ(tensor::full_tensor(integers.to(at::kDouble))[0].item<double>(), 7);
    at::Tensor target = distributed_zeros({2}, mesh, {tensor::Replicate()}, at::kLong);
    target.copy_(sum);
    EXPECT_EQ(tensor::full_tensor(target)[0].item<std::int64_t>(), 1);
  });
}

TEST(TensorPartial, MaxAndMinArePreservedOnlyByMonotonicOperators) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor max =
        from_local(contribution(mesh, {1, 5}), mesh, {tensor::Partial(comm::ReduceOp::Max)});
    EXPECT_EQ(tensor::full_tensor(-max)[0].item<double>(), -5);
    EXPECT_EQ(tensor::full_tensor(max * -2)[0].item<double>(), -10);
    EXPECT_EQ(tensor::full_tensor(max / -1)[0].item<double>(), -5);
    EXPECT_EQ(tensor::full_tensor(max + 1)[0].item<double>(), 6);
    EXPECT_TRUE(tensor::placements_of(max.clone())[0].is_partial());
    EXPECT_EQ(tensor::full_tensor(max.to(at::kInt))[0].item<int>(), 5);
  });
}

TEST(TensorPartial, MaxAndMinAreReducedBeforeIntegerOverflow) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor max =
        from_local(contribution(mesh, {-1, 5}).to(at::kLong), mesh, {tensor::Partial(comm::ReduceOp::Max)});
    EXPECT_EQ(tensor::full_tensor(max.to(at::kByte))[0].item<std::int64_t>(), 5);
    const at::Tensor large = from_local(contribution(mesh, {4294967296.0, 5}).to(at::kLong), mesh,
                                        {tensor::Partial(comm::ReduceOp::Min)});
    EXPECT_EQ(tensor::full_tensor(large.to(at::kInt))[0].item<int>(), 5);
    EXPECT_FALSE(tensor::placements_of(max.to(at::kInt))[0].is_partial());
    EXPECT_TRUE(tensor::placements_of(max.to(at::kInt).to(at::kLong))[0] ==
                tensor::placements_of(max.to(at::kInt))[0]);
  });
}

TEST(TensorPartial, ExtremaAreReducedBeforeConversionToComplex) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor local = mesh.coordinate(0) == 0 ? at::tensor({1.F, 8.F}) : at::tensor({5.F, 2.F});
    const at::Tensor max = from_local(local, mesh, {tensor::Partial(comm::ReduceOp::Max)});
    const at::Tensor complex = tensor::full_tensor(at::view_as_complex(max));
    EXPECT_TRUE(at::equal(at::view_as_real(complex), at::tensor({5.F, 8.F}))) << complex;
  });
}

TEST(TensorPartial, SumsAreReducedBeforeNarrowingConversion) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor sum = from_local(contribution(mesh, {70000, -69000}), mesh, {tensor::Partial()});
    EXPECT_EQ(tensor::full_tensor(sum.to(at::kHalf))[0].item<float>(), 1000);
  });
}

TEST(TensorReductions, RejectSameDimsAsDenseTensors) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor x = distributed_ones({4, 3}, mesh, {tensor::Shard(0)});
    EXPECT_THROW(x.mean(5), c10::Error);
    EXPECT_THROW(x.sum(-3), c10::Error);
    EXPECT_THROW(x.mean(Shape{0, 0}), c10::Error);
    EXPECT_THROW(x.amax(2), c10::Error);
    EXPECT_EQ(tensor::full_tensor(x.sum(-2))[0].item<float>(), 4);
  });
}

TEST(TensorMean, OfIntegersIsRejectedLikeForDenseTensors) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor x = distributed_ones({2}, mesh, {tensor::Shard(0)}, at::kLong);
    EXPECT_THROW(x.mean(), c10::Error);
    EXPECT_EQ(tensor::full_tensor(x.mean(at::kDouble)).item<double>(), 1);
  });
}

TEST(TensorMean, OfHalfDoesNotOverflow) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor ones = distributed_ones({200000}, mesh, {tensor::Shard(0)}, at::kHalf);
    EXPECT_EQ(tensor::full_tensor(ones.mean()).item<float>(), 1);
    EXPECT_EQ(ones.mean().scalar_type(), at::kHalf);
  });
}

TEST(TensorRedistribute, ReducesPartialGradientWithoutOtherCommunication) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor x = distributed_ones({4}, mesh, {tensor::Replicate()}).set_requires_grad(true);
    const at::Tensor same = tensor::redistribute(x, {tensor::Replicate()});
    // A gradient that is the sum of 1 and 2.
    const at::Tensor grad = from_local(at::full({4}, 1.0 + mesh.coordinate(0)), mesh, {tensor::Partial()});
    same.backward(grad);
    EXPECT_EQ(tensor::placements_of(x.grad()), tensor::Placements{tensor::Replicate()});
    EXPECT_EQ(tensor::local_of(x.grad())[0].item<double>(), 3);
  });
}

TEST(TensorReplicas, ReportDifferentReplicas) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor mine = numbers({4, 4}, static_cast<unsigned>(mesh.coordinate(0)));
    at::Tensor d = distributed_zeros({4, 4}, mesh, {tensor::Replicate()});
    EXPECT_NO_THROW(tensor::check_replicas(d));
    EXPECT_ERROR(d.copy_(mine), UsageError, "has different values on ranks");
    EXPECT_ERROR(check_replicas(mine, mesh), UsageError, "has different values on ranks");
    const at::Tensor different = from_local(mine, mesh, {tensor::Replicate()});
    EXPECT_ERROR(tensor::check_replicas(different), UsageError, "has different values on ranks");
    EXPECT_NO_THROW(tensor::check_replicas(from_local(mine, mesh, {tensor::Shard(0)})));
    EXPECT_NO_THROW(d.copy_(numbers({4, 4}, 7)));
    // Random values that each rank draws from its own generator.
    at::Tensor weight = distribute_parameter(at::zeros({4, 4}), mesh, {tensor::Shard(0)});
    const at::NoGradGuard no_grad;
    EXPECT_ERROR(weight.copy_(mine), UsageError, "has different values on ranks");
  });
}

// `orthogonal_` draws a plain tensor, also for a distributed one. The ranks are threads that draw from one
// generator, so their numbers differ.
TEST(TensorReplicas, ReportOrthogonalValuesThatDiffer) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    for (const tensor::AxisPlacement& placement :
         {tensor::AxisPlacement(tensor::Replicate()), tensor::AxisPlacement(tensor::Shard(0))}) {
      const at::Tensor weight = distribute_parameter(at::zeros({4, 4}), mesh, {placement});
      EXPECT_ERROR(torch::nn::init::orthogonal_(weight), UsageError, "has different values on ranks");
      EXPECT_EQ(full_copy(weight).abs().max().item<float>(), 0) << "the check follows the copy";
    }
    // One rank after the other seeds the generator and draws.
    const auto orthogonal = [&](std::int64_t seed) {
      const at::Tensor plain = at::zeros({4, 4});
      for (std::int64_t rank = 0; rank < 2; ++rank) {
        if (mesh.coordinate(0) == rank) {
          torch::manual_seed(static_cast<std::uint64_t>(seed));
          torch::nn::init::orthogonal_(plain);
        }
        mesh.all().barrier();
      }
      return plain;
    };
    const at::Tensor different = orthogonal(1 + mesh.coordinate(0)), same = orthogonal(1);
    EXPECT_ERROR(check_replicas(different, mesh), UsageError, "has different values on ranks");
    EXPECT_ERROR(tensor::check_replicas(distribute_tensor(different, mesh, {tensor::Replicate()}, false)),
                 UsageError, "has different values on ranks");
    // A broadcast makes the replicas equal.
    EXPECT_NO_THROW(tensor::check_replicas(distribute_tensor(different, mesh, {tensor::Replicate()})));
    EXPECT_NO_THROW(check_replicas(same, mesh));
    at::Tensor weight = distribute_parameter(at::zeros({4, 4}), mesh, {tensor::Shard(0)});
    weight.copy_(same);
    const at::Tensor full = full_copy(weight);
    EXPECT_LT(difference(full.mm(full.t()), at::eye(4)), 1e-5);
  });
}

TEST(TensorSizes, MismatchIsRejectedOnEveryRank) {
  on_mesh({4}, [](const tensor::DeviceMesh& mesh) {
    const auto d = [&](Shape sizes, std::int64_t dim) {
      return distribute_tensor(numbers(sizes, 1), mesh, {tensor::Shard(dim)}, false);
    };
    // On most ranks the shards match.
    EXPECT_ERROR(d({4}, 0) + d({3}, 0), ShapeError, "the sizes do not broadcast");
    EXPECT_ERROR(d({1, 4}, 1).add_(d({4, 4}, 1)), ShapeError, "a tensor that is written cannot be broadcast");
    EXPECT_ERROR(d({2, 6}, 1).mm(d({5, 2}, 0)), ShapeError, "matrices of these sizes cannot be multiplied");
    EXPECT_ERROR(d({2, 6}, 1).matmul(d({5, 2}, 0)), ShapeError,
                 "matrices of these sizes cannot be multiplied");
    EXPECT_ERROR(at::cat({d({2, 6}, 1), d({2, 5}, 1)}, 0), ShapeError,
                 "tensors of these sizes cannot be joined along dim 0");
    EXPECT_ANY_THROW(d({4, 4}, 0).transpose(0, 5));
    EXPECT_ANY_THROW(d({4, 4}, 0).expand({4}));
    EXPECT_ANY_THROW(d({4, 4}, 0).repeat({2}));
  });
}

// The message names the called operator with sizes and placements, even if it is composed of other products.
TEST(TensorSizes, InvalidProductReportsSizes) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const auto d = [&](Shape sizes) {
      return distribute_tensor(numbers(sizes, 1), mesh, {tensor::Shard(0)}, false);
    };
    const auto expect = [](const std::string& call, const std::string& hint, const auto& run) {
      try {
        run();
        ADD_FAILURE() << call;
      } catch (const ShapeError& e) {
        EXPECT_NE(std::string(e.what()).find("cannot be multiplied: " + call), std::string::npos) << e.what();
        EXPECT_NE(e.hint().find(hint), std::string::npos) << e.hint();
      }
    };
    const std::string rows = "the first must have as many columns as the second has rows";
    expect("aten::dot of [4] [Shard(0)] and [6] [Shard(0)]", rows, [&] { d({4}).dot(d({6})); });
    expect("aten::dot of [4, 4]", rows, [&] { d({4, 4}).dot(d({4})); });
    expect("aten::mv of [4, 6] [Shard(0)] and [4] [Shard(0)]", rows, [&] { d({4, 6}).mv(d({4})); });
    expect("aten::mv of [4]", rows, [&] { d({4}).mv(d({4})); });
    expect("aten::mv of [2, 4, 6]", rows, [&] { d({2, 4, 6}).mv(d({6})); });
    expect("aten::matmul of [4, 6]", rows, [&] { d({4, 6}).matmul(d({4, 6})); });
    expect("aten::mm of [4, 6]", rows, [&] { d({4, 6}).mm(d({4, 6})); });
    // Batch dims that differ, or do not broadcast.
    expect("aten::bmm of [2, 3, 4] [Shard(0)] and [4, 4, 5] [Shard(0)]", "batch dims must match", [&] {
      d({2, 3, 4}).bmm(d({4, 4, 5}));
    });
    expect("aten::baddbmm of", "batch dims must match", [&] {
      d({2, 3, 5}).baddbmm(d({2, 3, 4}), d({4, 4, 5}));
    });
    expect("aten::matmul of [2, 3, 4] [Shard(0)] and [4, 4, 5] [Shard(0)]", "batch dims must match", [&] {
      d({2, 3, 4}).matmul(d({4, 4, 5}));
    });
    expect("aten::linear of [4, 6]", "the last dims of input and weight", [&] {
      at::linear(d({4, 6}), d({4, 4}));
    });
    EXPECT_EQ(d({1, 3, 4}).matmul(d({4, 4, 5})).sizes(), (Shape{4, 3, 5}));
  });
}

TEST(TensorProducts, MatchDenseForVectors) {
  on_mesh({3}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor a = numbers({5}, 1), b = numbers({5}, 2), m = numbers({5, 5}, 3);
    for (const tensor::AxisPlacement& placement :
         {tensor::AxisPlacement(tensor::Shard(0)), tensor::AxisPlacement(tensor::Replicate())}) {
      const at::Tensor x = distribute_tensor(a.clone().set_requires_grad(true), mesh, {placement}, false);
      const at::Tensor y = distribute_tensor(b, mesh, {tensor::Shard(0)}, false),
                       w = distribute_tensor(m, mesh, {placement}, false);
      EXPECT_LT(difference(full_copy(x.matmul(y)), a.matmul(b)), 1e-5);
      EXPECT_LT(difference(full_copy(x.dot(y)), a.dot(b)), 1e-5);
      EXPECT_LT(difference(full_copy(w.mv(x)), m.mv(a)), 1e-5);
      EXPECT_LT(difference(full_copy(x.matmul(w)), a.matmul(m)), 1e-5);
      x.matmul(y).backward();
      EXPECT_LT(difference(full_copy(x.grad()), b), 1e-5);
    }
  });
}

TEST(TensorMemory, AccessToElementsIsRejectedWithExplanation) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor d = distributed_ones({4, 4}, mesh, {tensor::Shard(0)});
    const std::vector<std::string> messages{
        error_message<std::exception>([&] {
          std::ostringstream out;
          out << d;
        }),
        error_message<std::exception>([&] {
          std::ostringstream out;
          out << d.to(at::kDouble).sum();
        }),
        error_message<std::exception>([&] {
          std::ostringstream out;
          torch::save(d, out);
        }),
        error_message<std::exception>([&] { d.data_ptr(); }),
        error_message<std::exception>([&] { d.storage(); }),
        error_message<std::exception>([&] { d.const_data_ptr<float>(); }),
    };
    for (const std::string& message : messages) {
      EXPECT_NE(message.find("distributed tensor"), std::string::npos) << message;
      EXPECT_NE(message.find("to_string"), std::string::npos) << message;
      EXPECT_NE(message.find("full_tensor"), std::string::npos) << message;
    }
    EXPECT_FALSE(d.has_storage());
  });
}

TEST(TensorMicrobatches, SplitEachShardOfShardedBatch) {
  for (const Shape& shape : {Shape{2}, Shape{4}, Shape{2, 2}}) {
    on_mesh(shape, [&](const tensor::DeviceMesh& mesh) {
      for (const std::int64_t rows : {8, 16, 17, 11}) {
        for (const int chunks : {1, 2, 3}) {
          const tensor::Placements layout(shape.size(), tensor::Shard(0));
          const at::Tensor dense = numbers({rows, 3}, 1).set_requires_grad(true);
          const at::Tensor batch = distribute_tensor(dense, mesh, layout, false);
          const bool enough = (rows + mesh.size() - 1) / mesh.size() >= chunks;
          tensor::reset_traffic();
          if (!enough) {
            EXPECT_ERROR(value::split_tree(batch, chunks, "batch"), ShapeError,
                         "cannot be split into " + std::to_string(chunks) + " microbatches");
            continue;
          }
          const value::Chunks split = value::split_args_kwargs_into_chunks({batch}, {}, chunks);
          EXPECT_EQ(tensor::traffic().calls(), 0);
          const auto local = at::tensor_split(tensor::local_of(batch), chunks, 0);
          std::vector<c10::IValue> outputs;
          std::int64_t sum = 0;
          for (int i = 0; i < chunks; ++i) {
            const auto index = static_cast<std::size_t>(i);
            const at::Tensor part = split.args[index][0].toTensor();
            EXPECT_EQ(tensor::placements_of(part), layout);
            EXPECT_TRUE(at::equal(tensor::local_of(part), local[index]));
            EXPECT_EQ(part.size(0), split.rows[index]);
            sum += part.size(0);
            outputs.emplace_back(part * 2);
          }
          EXPECT_EQ(sum, rows);
          const at::Tensor merged = value::merge_chunks(outputs).toTensor();
          EXPECT_EQ(tensor::traffic().calls(), 0);
          EXPECT_EQ(tensor::placements_of(merged), layout);
          EXPECT_EQ(merged.sizes(), dense.sizes());
          EXPECT_TRUE(at::equal(tensor::full_tensor(merged).detach(), dense.detach() * 2));
          merged.sum().backward();
          EXPECT_TRUE(at::equal(full_copy(batch.grad()), at::full({rows, 3}, 2.0F)));
        }
      }
    });
  }
}

TEST(TensorMicrobatches, KeepOtherPlacements) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor dense = numbers({6, 4}, 1);
    for (const tensor::AxisPlacement& placement :
         {tensor::AxisPlacement(tensor::Shard(1)), tensor::AxisPlacement(tensor::Replicate()),
          tensor::AxisPlacement(tensor::Partial())}) {
      const auto parts = value::split_tree(distribute_tensor(dense, mesh, {placement}, false), 4, "batch");
      const auto want = at::tensor_split(dense, 4, 0);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        EXPECT_EQ(tensor::placements_of(parts[i].toTensor()), tensor::Placements{placement});
        EXPECT_LT(difference(tensor::full_tensor(parts[i].toTensor()), want[i]), 1e-6);
      }
      EXPECT_LT(difference(tensor::full_tensor(value::merge_chunks(parts).toTensor()), dense), 1e-6);
    }
  });
}

TEST(TensorMicrobatches, OfTensorsSplitTogetherHaveSameRows) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor dense = numbers({8, 4}, 1);
    const at::Tensor rows = distribute_tensor(dense, mesh, {tensor::Shard(0)}, false);
    const at::Tensor columns = distribute_tensor(dense, mesh, {tensor::Shard(1)}, false);
    EXPECT_NO_THROW(value::split_args_kwargs_into_chunks({rows}, {{"mask", rows.select(1, 0)}}, 4));
    EXPECT_NO_THROW(value::split_args_kwargs_into_chunks({columns}, {{"mask", dense}}, 4));
    EXPECT_NO_THROW(value::split_args_kwargs_into_chunks({rows}, {{"mask", dense}}, 1));
    for (const at::Tensor& other : {dense, columns}) {
      try {
        value::split_args_kwargs_into_chunks({rows}, {{"mask", other}}, 4);
        ADD_FAILURE() << "no error";
      } catch (const ShapeError& e) {
        EXPECT_NE(
            std::string(e.what()).find("the rows of kwargs.mask are not sharded and those of args[0] in 2 "
                                       "shards"),
            std::string::npos)
            << e.what();
        EXPECT_NE(e.hint().find("distribute_tensor"), std::string::npos) << e.hint();
      }
    }
  });
}

TEST(TensorMicrobatches, WithMixedPlacementsAreNotMerged) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor dense = numbers({4, 4}, 1);
    const auto d = [&](const tensor::AxisPlacement& p) {
      return c10::IValue(distribute_tensor(dense, mesh, {p}, false));
    };
    EXPECT_ERROR(value::merge_chunks({d(tensor::Shard(0)), d(tensor::Replicate())}), UsageError,
                 "[Shard(0)] and chunk 1 is");
    EXPECT_ERROR(value::merge_chunks({d(tensor::Shard(0)), c10::IValue(dense)}), UsageError,
                 "and chunk 1 is plain");
    EXPECT_ERROR(value::merge_chunks({c10::IValue(dense), d(tensor::Shard(0))}), UsageError,
                 "chunk 0 is plain and");
    EXPECT_NO_THROW(value::merge_chunks({d(tensor::Shard(0)), d(tensor::Shard(0))}));
  });
}

TEST(TensorMetadata, SupportsDistributedTensors) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor dense = numbers({6, 4}, 1);
    const at::Tensor d = distribute_tensor(dense, mesh, {tensor::Shard(0)}, false);
    const value::TensorMeta meta = value::TensorMeta::of(d);
    ASSERT_TRUE(meta.distributed);
    EXPECT_EQ(meta.shape, (Shape{6, 4}));
    EXPECT_EQ(meta.distributed->local_shape, (Shape{3, 4}));
    EXPECT_EQ(meta.distributed->placements, std::vector<std::string>{"Shard(0)"});
    EXPECT_EQ(to_string(meta), "float32[6, 4] on DeviceMesh(x=2) [Shard(0)]");
    EXPECT_FALSE(value::TensorMeta::of(dense).distributed);
    EXPECT_TRUE(differences(meta, value::TensorMeta::of(d * 2)).empty());
    EXPECT_EQ(differences(meta, value::TensorMeta::of(tensor::redistribute(d, {tensor::Replicate()}))).size(),
              1U);
    EXPECT_EQ(differences(meta, value::TensorMeta::of(dense)).size(), 1U);
    EXPECT_ERROR(validate_tensor_metadata(meta, dense, "x"), ShapeError,
                 "x has placements none (a plain tensor)");
    EXPECT_ERROR(meta.empty(), UsageError, "cannot be created from its metadata alone");
  });
}

}  // namespace
}  // namespace penstock::test
