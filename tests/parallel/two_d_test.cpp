// Tensor and data parallelism combined: replicated, sharded and hybrid over distributed, also unevenly
// sharded, parameters. Compared with one process.
#include "parallel/dense_gpt.h"
#include "support/check.h"
#include "support/error_message.h"
#include "support/mesh_ranks.h"
#include "tensor/norm_sum.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/graph/capture.h>
#include <penstock/parallel/ddp.h>
#include <penstock/parallel/sharded.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/tensor/grad_norm.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace penstock::test {
namespace {

using test::full_copy;

enum class Data { Replicated, Sharded, Hybrid };

const char* text(Data data) {
  switch (data) {
    case Data::Replicated:
      return "Replicated";
    case Data::Sharded:
      return "Sharded";
    case Data::Hybrid:
      return "Hybrid";
  }
  return "";
}

// Vocabulary (13), hidden width (13) and time (5) are uneven over two ranks.
parallel::ParallelPlan plan_of(bool sequence) {
  parallel::ParallelPlan plan{{"token", parallel::RowwiseParallel()},
                              {"head", parallel::DistributeParameters{{{"weight", tensor::Shard(0)}}}},
                              {"blocks.*.out", parallel::RowwiseParallel()},
                              {"blocks.*.up", parallel::ColwiseParallel()},
                              {"blocks.*.down", parallel::RowwiseParallel()}};
  if (sequence) plan.emplace_back("blocks.*.norm?", parallel::SequenceParallel());
  return plan;
}

// One rank of data and tensor parallelism: the model with both.
struct DataTensorRank {
  DataTensorRank(const comm::World& world, Variant variant, Data data, bool sequence = false,
                 parallel::ShardOptions options = {})
      : mesh(world.group(),
             data == Data::Hybrid ? std::vector<std::int64_t>{2, 2, 2}
                                  : std::vector<std::int64_t>{world.size() / 2, 2},
             data == Data::Hybrid ? std::vector<std::string>{"replicas", "dp", "tp"}
                                  : std::vector<std::string>{"dp", "tp"}),
        model(variant) {
    parallel::parallelize_module(*model, mesh["tp"], plan_of(sequence));
    const comm::Group& group = mesh.group("dp");
    rank = group.rank();
    ranks = group.size();
    if (data == Data::Hybrid) {
      options.replicas = mesh.group("replicas");
      rank += ranks * options.replicas->rank();
      ranks *= options.replicas->size();
    }
    if (data == Data::Replicated) {
      parallel::ReplicateOptions small;
      small.bucket_bytes = small.first_bucket_bytes = 300;
      replica.emplace(replicate(model, group, small));
    } else {
      std::vector<std::shared_ptr<torch::nn::Module>> units;
      for (const auto& block : *model->blocks) units.push_back(block);
      sharded.emplace(fully_shard(model, group, options, units));
    }
  }

  std::vector<at::Tensor> optimizer_parameters() const {
    return sharded ? sharded->parameters() : unique_parameters(*model);
  }
  at::Tensor loss(const Tokens& batch) const {
    const Tokens own = batch.shard(rank, ranks);
    return loss_of(runtime::call(model, own.inputs), own.targets);
  }
  //! The mean over the data-parallel ranks.
  at::Tensor mean(const at::Tensor& loss) const {
    at::Tensor value = full_copy(loss);
    mesh.group("dp").all_reduce(value, comm::ReduceOp::Avg);
    if (mesh.ndim() == 3) mesh.group("replicas").all_reduce(value, comm::ReduceOp::Avg);
    return value;
  }
  std::vector<value::NamedTensor> gradients() const {
    if (sharded) return sharded->gather_gradients();
    std::vector<value::NamedTensor> all = named();
    for (value::NamedTensor& item : all) item.tensor = full_copy(item.tensor.grad());
    return all;
  }
  std::vector<value::NamedTensor> parameters() const {
    if (sharded) return sharded->gather_parameters();
    std::vector<value::NamedTensor> all = named();
    for (value::NamedTensor& item : all) item.tensor = full_copy(item.tensor);
    return all;
  }
  std::vector<value::NamedTensor> named() const {
    std::vector<value::NamedTensor> all;
    for (const auto& item : model->named_parameters()) {
      const auto same = [&](const value::NamedTensor& other) { return other.tensor.is_same(item.value()); };
      if (std::none_of(all.begin(), all.end(), same)) all.push_back({item.key(), item.value()});
    }
    return all;
  }

  tensor::DeviceMesh mesh;
  SmallGpt model;
  int rank = 0, ranks = 1;
  std::optional<parallel::Replica> replica;
  std::optional<parallel::Sharded> sharded;
};

void on_ranks(Data data, const std::function<void(comm::World&)>& body) {
  at::set_num_threads(1);
  comm::run_thread_ranks(data == Data::Hybrid ? 8 : 4, body);
}

class Parallel2D : public ::testing::TestWithParam<Data> {};
INSTANTIATE_TEST_SUITE_P(Modes, Parallel2D, ::testing::Values(Data::Replicated, Data::Sharded, Data::Hybrid),
                         [](const auto& mode) { return text(mode.param); });

void train_and_compare(const comm::World& world, Variant variant, Data data, bool sequence,
                       const DenseGpt& dense) {
  parallel::ShardOptions options;
  options.find_unused = true;
  options.prefetch = sequence ? 0 : 1;
  DataTensorRank rank(world, variant, data, sequence, options);
  torch::optim::AdamW optimizer = adamw(rank.optimizer_parameters());
  for (int step = 0; step < kGptSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = rank.loss(tokens_of(kGptRows, step));
    loss.backward();
    expect_near("loss", rank.mean(loss), dense.losses[static_cast<std::size_t>(step)]);
    if (step == 0) expect_near("gradient of", rank.gradients(), dense.gradients);
    optimizer.step();
  }
  expect_near("parameter", rank.parameters(), dense.parameters);
}

TEST_P(Parallel2D, MatchesDenseTraining) {
  for (const Variant variant : {Variant::Plain, Variant::Tied, Variant::Frozen}) {
    const DenseGpt dense = run_dense_gpt(variant);
    for (const bool sequence : {false, true}) {
      SCOPED_TRACE(std::string(text(variant)) + (sequence ? ", sequence parallel" : ""));
      EXPECT_NO_THROW(on_ranks(GetParam(), [&](comm::World& world) {
        train_and_compare(world, variant, GetParam(), sequence, dense);
      }));
    }
  }
}

TEST(Parallel2D, MatchesDenseTrainingOver4x2Ranks) {
  const DenseGpt dense = run_dense_gpt(Variant::Tied);
  for (const Data data : {Data::Replicated, Data::Sharded}) {
    SCOPED_TRACE(text(data));
    EXPECT_NO_THROW(comm::run_thread_ranks(
        8, [&](comm::World& world) { train_and_compare(world, Variant::Tied, data, true, dense); }));
  }
}

// Gradients keep the placements of their parameters, in the memory of the buckets.
TEST_P(Parallel2D, ParametersAndGradientsKeepPlacements) {
  on_ranks(GetParam(), [&](comm::World& world) {
    DataTensorRank rank(world, Variant::Plain, GetParam());
    rank.loss(tokens_of(kGptRows, 0)).backward();
    if (rank.sharded) {
      rank.sharded->unshard();
      for (const parallel::ShardedParameter& item : rank.sharded->shards()) {
        const bool is_sharded = item.spec && !item.spec->placements[0].is_replicate();
        CHECK_SAME(is_sharded, !sharding_groups(item.spec ? item.spec->mesh : rank.mesh["tp"],
                                                item.spec ? item.spec->placements : tensor::Placements(1))
                                    .empty());
      }
    }
    const at::Tensor weight = rank.model->token->weight;
    CHECK_THAT(tensor::is_dtensor(weight) &&
               tensor::placements_of(weight) == tensor::Placements{tensor::Shard(0)});
    CHECK_THAT(weight.sizes() == at::IntArrayRef({kVocabulary, kGptWidth}));
    if (rank.sharded) return;
    CHECK_THAT(tensor::is_dtensor(weight.grad()) &&
               tensor::placements_of(weight.grad()) == tensor::placements_of(weight));
    const at::Tensor before = tensor::local_of(weight.grad());
    rank.loss(tokens_of(kGptRows, 1)).backward();  // accumulates in place
    CHECK_THAT(tensor::local_of(weight.grad()).is_alias_of(before));
  });
}

TEST_P(Parallel2D, AccumulatesAndClipsByGlobalNorm) {
  const DenseGpt dense = run_dense_gpt(Variant::Tied);
  double squares = 0, largest = 0;
  for (const value::NamedTensor& item : dense.gradients) {
    squares += (2 * item.tensor).to(at::kDouble).square().sum().item<double>();
    largest = std::max(largest, (2 * item.tensor).abs().max().item<double>());
  }
  const double norm = std::sqrt(squares);
  on_ranks(GetParam(), [&](comm::World& world) {
    DataTensorRank rank(world, Variant::Tied, GetParam());
    const Tokens batch = tokens_of(kGptRows, 0);
    if (rank.replica) {
      const auto quiet = rank.replica->no_sync();
      rank.loss(batch).backward();
    } else {
      const auto quiet = rank.sharded->no_sync();
      rank.loss(batch).backward();
    }
    rank.loss(batch).backward();
    const auto clip = [&](double max, double order) {
      return rank.sharded ? rank.sharded->clip_grad_norm(max, order)
                          : tensor::clip_grad_norm(rank.optimizer_parameters(), max, order);
    };
    const double infinity = std::numeric_limits<double>::infinity();
    CHECK_THAT(std::abs(clip(1e9, infinity) - largest) < 1e-5);
    CHECK_THAT(std::abs(clip(0.1, 2) - norm) < 1e-5 * norm);
    std::vector<value::NamedTensor> expected = dense.gradients;
    for (value::NamedTensor& item : expected) item.tensor = item.tensor * (2 * 0.1 / norm);
    expect_near("gradient of", rank.gradients(), expected);
  });
}

TEST_P(Parallel2D, CommunicatesEachBucketOrUnitOnce) {
  on_ranks(GetParam(), [&](comm::World& world) {
    DataTensorRank rank(world, Variant::Plain, GetParam());
    const Traffic all(world);
    tensor::reset_traffic();
    rank.loss(tokens_of(kGptRows, 0)).backward();
    const auto own = tensor::traffic();  // of tensor parallelism
    const int reduces = all.of("all_reduce").count - static_cast<int>(own.all_reduces);
    const int scatters = all.of("reduce_scatter").count - static_cast<int>(own.reduce_scatters);
    if (rank.replica) {
      CHECK_SAME(reduces, static_cast<int>(rank.replica->buckets().size()));
      CHECK_THAT(reduces > 1);
    } else {
      CHECK_SAME(scatters, 3);  // two blocks and the root
      CHECK_SAME(reduces, GetParam() == Data::Hybrid ? 3 : 0);
    }
  });
}

TEST_P(Parallel2D, FailedBackwardLeavesNoState) {
  const DenseGpt dense = run_dense_gpt(Variant::Plain);
  on_ranks(GetParam(), [&](comm::World& world) {
    DataTensorRank rank(world, Variant::Plain, GetParam());
    const Tokens batch = tokens_of(kGptRows, 0);
    // The last gradient of the backward: all others are already in flight.
    const auto breaks = std::make_shared<bool>(true);
    rank.model->position.register_hook([breaks](const at::Tensor& grad) {
      if (*breaks) throw std::runtime_error("on purpose");
      return grad;
    });
    bool thrown = false;
    try {
      rank.loss(batch).backward();
    } catch (const std::exception&) {
      thrown = true;
    }
    *breaks = false;
    CHECK_THAT(thrown);
    for (const value::NamedTensor& item : rank.named()) item.tensor.mutable_grad() = at::Tensor();
    if (rank.sharded) {
      for (const at::Tensor& shard : rank.optimizer_parameters()) shard.mutable_grad() = at::Tensor();
    }
    rank.loss(batch).backward();
    expect_near("gradient of", rank.gradients(), dense.gradients);
  });
}

// A model that no rank could hold: created on the meta device, sharded, then filled as from a checkpoint.
TEST(Parallel2D, MetaParametersAreShardedAndFilled) {
  SmallGpt dense;
  const Tokens batch = tokens_of(kGptRows, 0);
  loss_of(dense(batch.inputs), batch.targets).backward();
  std::map<std::string, at::Tensor> values;
  for (const auto& item : dense->named_parameters()) values[item.key()] = item.value().detach();
  at::set_num_threads(1);
  comm::run_thread_ranks(4, [&](comm::World& world) {
    const tensor::DeviceMesh mesh(world.group(), {2, 2}, {"dp", "tp"});
    SmallGpt model{nullptr};
    {
      const graph::MetaDeviceScope meta_scope;
      model = SmallGpt();
    }
    parallel::parallelize_module(*model, mesh["tp"], plan_of(false));
    CHECK_THAT(model->token->weight.is_meta() && tensor::is_dtensor(model->token->weight));
    std::vector<std::shared_ptr<torch::nn::Module>> units;
    for (const auto& block : *model->blocks) units.push_back(block);
    parallel::Sharded sharded = parallel::fully_shard(model, mesh.group("dp"), {}, units);
    {
      const at::NoGradGuard no_grad;
      for (const parallel::ShardedParameter& item : sharded.shards()) {
        at::Tensor value = values.at(item.name);
        if (item.spec)
          value = tensor::local_of(distribute_tensor(value, item.spec->mesh, item.spec->placements, false));
        item.shard.copy_(value.flatten().slice(0, item.begin, item.end));
      }
    }
    const Tokens own = batch.shard(mesh.group("dp").rank(), 2);
    loss_of(runtime::call(model, own.inputs), own.targets).backward();
    expect_near("parameter", sharded.gather_parameters(), copies(*dense));
    expect_near("gradient of", sharded.gather_gradients(), gradient_copies(*dense));
  });
}

// A style that prepares calls, combined with sharding of the same module.
TEST(Parallel2D, UnitsSupportPreparedCalls) {
  const DenseGpt dense = run_dense_gpt(Variant::Plain);
  on_ranks(Data::Sharded, [&](comm::World& world) {
    const tensor::DeviceMesh mesh(world.group(), {2, 2}, {"dp", "tp"});
    SmallGpt model(Variant::Plain);
    parallel::ParallelPlan plan = plan_of(false);
    plan.emplace_back("blocks.*", parallel::PrepareModuleInputOutput{
                                      {{tensor::AxisPlacement(tensor::Shard(1))}}, {tensor::Replicate()}});
    parallel::parallelize_module(*model, mesh["tp"], plan);
    std::vector<std::shared_ptr<torch::nn::Module>> units;
    for (const auto& block : *model->blocks) units.push_back(block);
    parallel::Sharded sharded = parallel::fully_shard(model, mesh.group("dp"), {}, units);
    const Tokens own = tokens_of(kGptRows, 0).shard(mesh.group("dp").rank(), 2);
    loss_of(runtime::call(model, own.inputs), own.targets).backward();
    expect_near("gradient of", sharded.gather_gradients(), dense.gradients);
    const std::string message = error_message<UsageError>(
        [&] { const parallel::Sharded twice = parallel::fully_shard(model, mesh.group("dp"), {}, units); });
    CHECK_THAT(message.find("already has exclusive call hooks") != std::string::npos);
  });
}

// Every kind of placement in one norm; each element counts once.
TEST(ParallelClipGradNorm, CountsEachElementOnceOverAllAxes) {
  const double infinity = std::numeric_limits<double>::infinity();
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  struct Item {
    at::Tensor grad;
    tensor::Placements placements, gradient_placements;
  };
  const tensor::Placements none{};
  std::vector<Item> items;
  const auto add = [&](at::IntArrayRef sizes, tensor::Placements placements,
                       tensor::Placements gradient_placements) {
    items.push_back({at::randn(sizes, generator), std::move(placements), std::move(gradient_placements)});
  };
  add({3, 2}, none, none);
  add({5, 3}, {tensor::Shard(0), tensor::Replicate()}, {tensor::Shard(0), tensor::Replicate()});
  add({5, 3}, {tensor::Replicate(), tensor::Shard(1)}, {tensor::Replicate(), tensor::Shard(1)});
  add({1, 7}, {tensor::Shard(0), tensor::Shard(1)}, {tensor::Shard(0), tensor::Shard(1)});
  add({7}, {tensor::Shard(0), tensor::Shard(0)}, {tensor::Shard(0), tensor::Shard(0)});
  add({4, 2}, {tensor::Replicate(), tensor::Replicate()}, {tensor::Replicate(), tensor::Replicate()});
  add({4, 3}, {tensor::Shard(0), tensor::Replicate()}, {tensor::Partial(), tensor::Replicate()});
  add({4, 3}, {tensor::Replicate(), tensor::Replicate()},
      {tensor::Partial(), tensor::Partial(comm::ReduceOp::Avg)});
  add({4, 3}, {tensor::Replicate(), tensor::Shard(0)}, {tensor::Replicate(), tensor::Replicate()});
  std::vector<at::Tensor> flat;
  for (const Item& item : items) flat.push_back(item.grad.flatten().to(at::kDouble));
  const at::Tensor all = at::cat(flat);
  comm::run_thread_ranks(6, [&](comm::World& world) {
    const tensor::DeviceMesh mesh(world.group(), {3, 2}, {"a", "b"});
    for (const double order : {1.0, 2.0, 3.0, infinity}) {
      std::vector<at::Tensor> parameters;
      for (const Item& item : items) {
        at::Tensor value = at::zeros_like(item.grad).requires_grad_(true);
        at::Tensor grad = item.grad.clone();
        if (!item.placements.empty()) {
          value = distribute_tensor(value, mesh, item.placements);
          // A partial gradient: either the first rank has the full value, or each rank its share of an
          // average.
          tensor::Placements start(2);
          for (std::size_t axis = 0; axis < 2; ++axis) {
            const tensor::AxisPlacement& to = item.gradient_placements[axis];
            if (to.is_partial() && to.reduce() == comm::ReduceOp::Sum &&
                mesh.coordinate(static_cast<int>(axis)) != 0)
              grad.zero_();
            if (to.is_partial()) start[axis] = to;
          }
          grad = redistribute(from_local(grad, mesh, start), item.gradient_placements);
        }
        value.mutable_grad() = grad;
        parameters.push_back(value);
      }
      const double expected = at::linalg_vector_norm(all, order).item<double>();
      const double norm = tensor::clip_grad_norm(parameters, 0.5, order);
      CHECK_THAT(std::abs(norm - expected) < 1e-5 * expected);
      for (std::size_t i = 0; i < items.size(); ++i)
        expect_near("clipped", full_copy(parameters[i].grad()), items[i].grad * (0.5 / expected));
    }
  });
}

}  // namespace
}  // namespace penstock::test
