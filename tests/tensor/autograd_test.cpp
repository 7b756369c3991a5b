// Training with distributed tensors: second derivatives, split backward passes, optimizers, autocast, and
// shared, asynchronous redistributions.
#include "runtime/backward/backward.h"
#include "support/error_message.h"
#include "support/mesh_ranks.h"
#include "tensor/dispatch/dtensor_impl.h"

#include <penstock/base/error.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <future>

namespace penstock::test {
namespace {

TEST(TensorAutograd, SecondDerivativesMatchDense) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    for (const tensor::AxisPlacement& sharded :
         {tensor::AxisPlacement(tensor::Shard(0)), tensor::AxisPlacement(tensor::Shard(1)),
          tensor::AxisPlacement(tensor::Replicate())}) {
      const auto run = [&](const at::Tensor& x, const at::Tensor& w) {
        const at::Tensor y = x.matmul(w).tanh().pow(3).sum();
        const auto first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
        const at::Tensor z = first.pow(2).sum();
        return torch::autograd::grad({z}, {x, w});
      };
      const at::Tensor x = numbers({2, 4, 6}, 1).set_requires_grad(true),
                       w = numbers({6, 4}, 2).set_requires_grad(true);
      const auto want = run(x, w);
      const auto got =
          run(distribute_tensor(x, mesh, {tensor::Replicate()}), distribute_tensor(w, mesh, {sharded}));
      for (int i = 0; i < 2; ++i)
        EXPECT_LT(difference(tensor::full_tensor(got[i]), want[i]),
                  1e-4 * want[i].abs().max().item<double>());
    }
  });
}

TEST(TensorAutograd, ConsumersShareOneRedistribution) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor x =
        distribute_tensor(numbers({4, 6}, 1), mesh, {tensor::Shard(0)}).set_requires_grad(true);
    const at::Tensor w =
        distribute_parameter(numbers({6, 6}, 2).set_requires_grad(true), mesh, {tensor::Shard(1)});
    const at::Tensor h = x * 2;
    tensor::reset_traffic();
    const at::Tensor y = h.mm(w) + h.mm(w) * h.mm(w);
    EXPECT_EQ(tensor::traffic().all_gathers, 1);
    EXPECT_EQ(tensor::traffic().calls(), 1);
    tensor::reset_traffic();
    y.sum().backward();
    EXPECT_EQ(tensor::traffic().reduce_scatters, 1);
    EXPECT_EQ(tensor::traffic().calls(), 1);
  });
}

template <class Optimizer, class Options>
void check_optimizer(const Options& options) {
  on_mesh({2}, [&](const tensor::DeviceMesh& mesh) {
    const at::Tensor x = numbers({8, 6}, 3);
    const auto train = [&](std::vector<at::Tensor> parameters) {
      Optimizer optimizer(parameters, options);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        (x.matmul(parameters[0]).tanh().matmul(parameters[1]) + parameters[2]).pow(2).mean().backward();
        torch::nn::utils::clip_grad_norm_(parameters, 0.5);
        optimizer.step();
      }
      return parameters;
    };
    std::vector<at::Tensor> dense, sharded;
    const std::vector<tensor::AxisPlacement> placements{tensor::Shard(1), tensor::Shard(0),
                                                        tensor::Replicate()};
    const std::vector<std::vector<std::int64_t>> shapes{{6, 5}, {5, 3}, {3}};
    for (std::size_t i = 0; i < 3; ++i) {
      dense.push_back(numbers(shapes[i], static_cast<unsigned>(i)).set_requires_grad(true));
      sharded.push_back(distribute_parameter(dense.back(), mesh, {placements[i]}));
    }
    dense = train(dense);
    sharded = train(sharded);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_LT(difference(tensor::full_tensor(sharded[i]).detach(), dense[i].detach()), 1e-5);
  });
}

TEST(TensorOptimizers, UpdateDistributedParameters) {
  check_optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  check_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(1e-1).momentum(0.9));
}

TEST(TensorAutocast, ComputesInLowerPrecision) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const at::Tensor x = numbers({4, 6}, 1), w = numbers({6, 4}, 2);
    const at::Tensor a = distribute_tensor(x, mesh, {tensor::Replicate()}, false).set_requires_grad(true);
    const at::Tensor b = distribute_tensor(w, mesh, {tensor::Shard(1)}, false).set_requires_grad(true);
    const at::Tensor want = x.mm(w), got = a.mm(b);
    EXPECT_EQ(got.scalar_type(), at::kBFloat16);
    EXPECT_LT(difference(tensor::full_tensor(got).detach(), want), 1e-2);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    got.to(at::kFloat).sum().backward();
    EXPECT_EQ(b.grad().scalar_type(), at::kFloat);
  });
}

TEST(TensorAutocast, ShardedLayerMatchesDenseTraining) {
  const at::Tensor x = numbers({4, 6}, 1), w = numbers({8, 6}, 2), b = numbers({8}, 3);
  const auto run = [](const at::Tensor& in, const at::Tensor& weight, const at::Tensor& bias) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const at::Tensor y = at::gelu(at::linear(in, weight, bias)).to(at::kFloat);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    y.pow(2).sum().backward();
    return std::vector<at::Tensor>{y.detach(), weight.grad(), bias.grad()};
  };
  const auto leaf = [](const at::Tensor& t) { return t.clone().set_requires_grad(true); };
  const auto want = run(leaf(x), leaf(w), leaf(b));
  on_mesh({2}, [&](const tensor::DeviceMesh& mesh) {
    const auto got = run(distribute_tensor(leaf(x), mesh, {tensor::Replicate()}, false),
                         distribute_parameter(leaf(w), mesh, {tensor::Shard(0)}, false),
                         distribute_parameter(leaf(b), mesh, {tensor::Shard(0)}, false));
    // Dot products over full rows: the order of sums is the same as in the dense layer.
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(got[i].scalar_type(), at::kFloat);
      EXPECT_LT(difference(tensor::full_tensor(got[i]), want[i]), 2e-2 * want[i].abs().max().item<double>())
          << i;
    }
  });
}

TEST(TensorAutograd, SecondDerivativesOfLayersMatchDense) {
  const at::Tensor words = at::arange(12, at::kLong).remainder(5).view({3, 4});
  const auto run = [&](const std::vector<at::Tensor>& p) {
    const at::Tensor x = at::layer_norm(at::embedding(p[0], words, /*padding_idx=*/2), {6}, p[1], p[2]);
    const at::Tensor y = at::gelu(at::linear(x, p[3])).softmax(-1).pow(2).sum();
    const auto first = torch::autograd::grad({y}, p, {}, true, true);
    at::Tensor z = first[0].pow(2).sum();
    for (std::size_t i = 1; i < first.size(); ++i) z = z + first[i].pow(2).sum();
    const auto second = torch::autograd::grad({z}, p);
    std::vector<at::Tensor> all = first;
    all.insert(all.end(), second.begin(), second.end());
    return all;
  };
  const std::vector<std::vector<std::int64_t>> shapes{{5, 6}, {6}, {6}, {8, 6}};
  std::vector<at::Tensor> dense;
  for (std::size_t i = 0; i < 4; ++i)
    dense.push_back(numbers(shapes[i], static_cast<unsigned>(i)).set_requires_grad(true));
  const auto want = run(dense);
  const std::vector<std::vector<tensor::AxisPlacement>> layouts{
      {tensor::Shard(0), tensor::Replicate(), tensor::Replicate(), tensor::Shard(0)},
      {tensor::Shard(1), tensor::Shard(0), tensor::Replicate(), tensor::Shard(1)},
      {tensor::Replicate(), tensor::Replicate(), tensor::Replicate(), tensor::Replicate()}};
  for (const std::int64_t ranks : {2, 4}) {
    on_mesh({ranks}, [&](const tensor::DeviceMesh& mesh) {
      for (const auto& layout : layouts) {
        std::vector<at::Tensor> sharded;
        for (std::size_t i = 0; i < 4; ++i)
          sharded.push_back(distribute_tensor(dense[i], mesh, {layout[i]}, false));
        const auto got = run(sharded);
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_LT(difference(tensor::full_tensor(got[i]).detach(), want[i].detach()),
                    1e-4 * std::max(1.0, want[i].abs().max().item<double>()))
              << tensor::to_string({layout[0]}) << " " << i;
        }
      }
    });
  }
}

TEST(TensorAutograd, SplitBackwardIsBitwiseEqual) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const auto run = [&](bool split) {
      const auto parameter = [&](c10::IntArrayRef sizes, unsigned seed, const tensor::AxisPlacement& at) {
        return distribute_parameter(numbers(sizes, seed).set_requires_grad(true), mesh, {at}, false);
      };
      const std::vector<at::Tensor> p{
          parameter({8, 6}, 1, tensor::Shard(0)), parameter({8}, 2, tensor::Shard(0)),
          parameter({6, 8}, 3, tensor::Shard(1)), parameter({6}, 4, tensor::Replicate())};
      const at::Tensor x = numbers({2, 5, 6}, 5).set_requires_grad(true);
      const at::Tensor y =
          tensor::full_tensor(at::linear(at::gelu(at::linear(x, p[0], p[1])), p[2], p[3]) + x);
      const at::Tensor grad = numbers({2, 5, 6}, 6);
      std::vector<at::Tensor> result;
      if (split) {
        runtime::InputBackward half = runtime::backward_input({y}, {grad}, {x});
        result = half.input_grads;
        EXPECT_FALSE(p[0].grad().defined());
        half.weights.run();
      } else {
        result = runtime::backward_full({y}, {grad}, {x});
      }
      for (const at::Tensor& one : p) result.push_back(tensor::local_of(one.grad()));
      return result;
    };
    const auto full_backward = run(false), halves = run(true);
    for (std::size_t i = 0; i < full_backward.size(); ++i)
      EXPECT_TRUE(at::equal(full_backward[i], halves[i])) << i;
  });
}

TEST(TensorAutograd, ShardedEmbeddingComputesGradientOfItsOwnRows) {
  const at::Tensor words = at::arange(24, at::kLong).remainder(7).view({4, 6});
  for (const bool by_frequency : {false, true}) {
    const at::Tensor dense = numbers({7, 4}, 1).set_requires_grad(true);
    const auto run = [&](const at::Tensor& table, const at::Tensor& indices) {
      const at::Tensor y = at::embedding(table, indices, /*padding_idx=*/3, by_frequency);
      (y * y).sum().backward();
      return y;
    };
    run(dense, words);
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{2}, {4}, {2, 2}}) {
      on_mesh(shape, [&](const tensor::DeviceMesh& mesh) {
        std::vector<std::pair<tensor::Placements, tensor::Placements>> layouts{
            {{tensor::Shard(0)}, {tensor::Replicate()}}};
        if (shape.size() == 2) {
          layouts = {{{tensor::Shard(0), tensor::Shard(1)}, {tensor::Replicate(), tensor::Replicate()}},
                     {{tensor::Shard(0), tensor::Replicate()}, {tensor::Replicate(), tensor::Shard(0)}},
                     {{tensor::Shard(0), tensor::Shard(0)}, {tensor::Replicate(), tensor::Replicate()}}};
        }
        for (const auto& [at, sharded] : layouts) {
          const at::Tensor table = distribute_parameter(dense, mesh, at, false);
          tensor::reset_traffic();
          run(table, distribute_tensor(words, mesh, sharded, false));
          EXPECT_EQ(tensor::placements_of(table.grad()), at);
          EXPECT_LT(difference(tensor::full_tensor(table.grad()), dense.grad()), 1e-5)
              << to_string(at) << to_string(sharded);
        }
      });
    }
  }
}

TEST(TensorOptimizers, SupportForeachAndFusedUpdates) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const std::vector<tensor::AxisPlacement> placements{tensor::Shard(1), tensor::Shard(0),
                                                        tensor::Replicate()};
    const std::vector<std::vector<std::int64_t>> shapes{{6, 5}, {5, 3}, {3}};
    using List = std::vector<at::Tensor>;
    const auto list = [&](unsigned seed, bool sharded) {
      List tensors;
      for (std::size_t i = 0; i < 3; ++i) {
        const at::Tensor t = numbers(shapes[i], seed + static_cast<unsigned>(i));
        tensors.push_back(sharded ? distribute_tensor(t, mesh, {placements[i]}, false) : t);
      }
      return tensors;
    };
    const auto steps = [&](bool sharded) {
      const torch::NoGradGuard no_grad;
      List a = list(1, sharded);
      const List b = list(11, sharded), c = list(21, sharded);
      at::_foreach_mul_(a, 0.5);
      at::_foreach_add_(a, b, 2);
      at::_foreach_lerp_(a, b, 0.25);
      at::_foreach_addcmul_(a, b, c, -1);
      at::_foreach_addcdiv_(a, b, at::_foreach_add(at::_foreach_abs(c), 1), 1);
      at::_foreach_sqrt_(at::_foreach_mul(a, a));
      const List norms = at::_foreach_norm(a);
      List first = list(31, sharded), second = at::_foreach_mul(first, first), counts;
      for (int i = 0; i < 3; ++i) counts.push_back(at::full({}, 1.0));
      at::_fused_adamw_(a, b, first, second, {}, counts, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
      at::_fused_sgd_(a, c, first, 0.1, 0.9, 0.05, 0, false, false, false);
      List all = a;
      all.insert(all.end(), first.begin(), first.end());
      all.insert(all.end(), norms.begin(), norms.end());
      return all;
    };
    const List want = steps(false), got = steps(true);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(tensor::is_dtensor(got[i])) << i;
      EXPECT_LT(difference(tensor::full_tensor(got[i]), want[i]), 1e-5) << i;
    }
    // A gradient in other placements is redistributed to those of its parameter.
    List parameter{distribute_tensor(at::ones({4, 4}), mesh, {tensor::Shard(0)}, false)},
        gradient{distribute_tensor(at::ones({4, 4}), mesh, {tensor::Partial()}, false)};
    at::_fused_sgd_(parameter, gradient, {}, 0, 0, 0.5, 0, false, false, false);
    EXPECT_LT(difference(tensor::full_tensor(parameter[0]), at::full({4, 4}, 0.5)), 1e-6);
  });
}

TEST(TensorCollectives, AreAsynchronousUntilResultIsUsed) {
  std::promise<void> first_has_gone_on;
  std::shared_future<void> gone_on = first_has_gone_on.get_future().share();
  on_mesh({2}, [&](const tensor::DeviceMesh& mesh) {
    const at::Tensor x =
        from_local(at::full({4}, 1.0F + static_cast<float>(mesh.coordinate(0))), mesh, {tensor::Partial()});
    const at::Tensor sharded = from_local(at::full({2}, 5.0F), mesh, {tensor::Shard(0)});
    // The second rank starts only after the first has passed all of this, which would be impossible if
    // anything had waited.
    if (mesh.coordinate(0) == 1) gone_on.wait();
    const at::Tensor sum = tensor::redistribute(x, {tensor::Replicate()}),
                     part = tensor::redistribute(x, {tensor::Shard(0)}),
                     all = tensor::redistribute(sharded, {tensor::Replicate()});
    const at::Tensor kept = sum.detach();  // this handle also knows that the reduction is in flight
    if (mesh.coordinate(0) == 0) {
      for (const at::Tensor& t : {sum, part, all, kept}) EXPECT_TRUE(tensor::impl_of(t)->pending());
      EXPECT_EQ(sum.sizes(), (std::vector<std::int64_t>{4}));  // reading sizes does not use the elements
      first_has_gone_on.set_value();
    }
    const at::Tensor twice = sum + all;  // the first use waits
    EXPECT_FALSE(tensor::impl_of(sum)->pending());
    EXPECT_TRUE(tensor::impl_of(part)->pending());
    EXPECT_LT(difference(tensor::full_tensor(twice), at::full({4}, 8.0)), 1e-6);
    EXPECT_LT(difference(tensor::local_of(kept), at::full({4}, 3.0)), 1e-6);
    EXPECT_LT(difference(tensor::local_of(part), at::full({2}, 3.0)), 1e-6);
  });
}

TEST(TensorRules, MissingRuleErrorExplainsWhatToDo) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor d = distribute_tensor(numbers({4, 4}, 1), mesh, {tensor::Shard(0)}, false);
    EXPECT_THAT(
        error_message<UsageError>([&] { at::linalg_inv(d); }),
        testing::AllOf(testing::HasSubstr("aten::linalg_inv_ex"), testing::HasSubstr("[4, 4] [Shard(0)]"),
                       testing::HasSubstr("to_local()"), testing::HasSubstr("ReplicateUnknownOps")));
    EXPECT_THAT(error_message<UsageError>([&] {
                  at::Tensor copy = d.clone();
                  copy.geometric_(0.5);
                }),
                testing::AllOf(testing::HasSubstr("aten::geometric_"), testing::HasSubstr("local_of()")));
    const tensor::ReplicateUnknownOps allowed;
    EXPECT_EQ(tensor::placements_of(at::linalg_inv(d)), tensor::Placements{tensor::Replicate()});
    const torch::InferenceMode inference;
    EXPECT_LT(difference(tensor::full_tensor(at::linalg_inv(d)), at::linalg_inv(numbers({4, 4}, 1))), 1e-4);
  });
}

// A view of a redistributed tensor is a view of the copy: a write that would be lost is an error.
TEST(TensorViews, WriteReachesTensorOrIsRejected) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor row = at::full({2, 6}, 7.0F);
    for (const bool record : {false, true}) {
      const c10::AutoGradMode mode(record);
      at::Tensor by_columns = distribute_tensor(at::zeros({4, 6}), mesh, {tensor::Shard(1)}, false);
      by_columns.slice(0, 1, 3).copy_(row);
      by_columns.select(0, 0).add_(1);
      at::Tensor want = at::zeros({4, 6});
      want.slice(0, 1, 3).copy_(row);
      want.select(0, 0).add_(1);
      EXPECT_TRUE(at::equal(tensor::full_tensor(by_columns), want));

      at::Tensor by_rows = distribute_tensor(at::zeros({4, 6}), mesh, {tensor::Shard(0)}, false);
      try {
        by_rows.slice(0, 1, 3).copy_(row);
        ADD_FAILURE() << "a write was lost";
      } catch (const UsageError& e) {
        EXPECT_THAT(e.what(),
                    testing::AllOf(testing::HasSubstr("aten::copy_"), testing::HasSubstr("clone()")));
      }
      EXPECT_ERROR(by_rows.slice(0, 1, 3).t().select(0, 1).zero_(), UsageError,
                   "would not reach its base tensor");
      EXPECT_ERROR(by_rows.chunk(2, 0)[0].mul_(2), UsageError, "would not reach its base tensor");
      EXPECT_ERROR(at::_foreach_add_(by_rows.split(2, 0), 1), UsageError, "would not reach its base tensor");
      const at::Tensor alias = by_rows.view({4, 2, 3}).select(0, 1);  // of a view that no longer exists
      EXPECT_ERROR(at::Tensor(alias).zero_(), UsageError, "would not reach its base tensor");
      // A tensor without other references may be written to, and so may a copy.
      at::Tensor own = (by_rows + 1).slice(0, 1, 3);
      own.mul_(3);
      EXPECT_TRUE(at::equal(tensor::full_tensor(own), at::full({2, 6}, 3.0F)));
      at::Tensor copy = by_rows.slice(0, 1, 3).clone();
      copy.add_(2);
      EXPECT_TRUE(at::equal(tensor::full_tensor(copy), at::full({2, 6}, 2.0F)));
      EXPECT_TRUE(at::equal(tensor::full_tensor(by_rows), at::zeros({4, 6})));
    }
  });
}

// The gradient of a view may belong to a redistributed copy; accumulating is not a lost write.
TEST(TensorViews, GradientsOfRedistributedViewsAccumulate) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor x =
        distribute_tensor(at::ones({4, 6}), mesh, {tensor::Shard(1)}, false).set_requires_grad(true);
    for (int i = 0; i < 2; ++i) (x.reshape({24}) * 2).sum().backward();
    EXPECT_TRUE(at::equal(tensor::full_tensor(x.grad()), at::full({4, 6}, 4.0F)));
  });
}

}  // namespace
}  // namespace penstock::test
