// Microbatches: splitting, merging, chunk specs, errors, user-defined types, and loss reductions.
#include "support/error_message.h"
#include "value/random_trees.h"

#include <penstock/base/error.h>
#include <penstock/runtime/loss_reduction.h>
#include <penstock/value/microbatch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/custom_class.h>
#include <torch/types.h>

namespace penstock::value {
namespace {

using c10::IValue;
using penstock::test::dict;
using penstock::test::tuple;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ValueSplit, MatchesTensorSplitForEverySizeAndCount) {
  for (std::int64_t rows = 1; rows <= 17; ++rows) {
    for (int chunks = 1; chunks <= rows; ++chunks) {
      const at::Tensor x = torch::arange(rows * 2).view({rows, 2});
      const Chunks got = split_args_kwargs_into_chunks({x}, {{"y", x + 1}}, chunks);
      const auto expected = torch::tensor_split(x, chunks);
      ASSERT_EQ(got.args.size(), static_cast<std::size_t>(chunks));
      EXPECT_EQ(got.rows, chunk_sizes(rows, chunks));
      for (int i = 0; i < chunks; ++i) {
        EXPECT_TRUE(got.args[i][0].toTensor().equal(expected[i]));
        EXPECT_TRUE(got.kwargs[i].at("y").toTensor().equal(expected[i] + 1));
        EXPECT_EQ(got.rows[i], expected[i].size(0));
      }
    }
  }
}

TEST(ValueSplit, MergeRestoresBatchForNestedTreesAndAnyDims) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random random(seed);
    const std::int64_t rows = test::pick(random, 1, 12);
    const int chunks = static_cast<int>(test::pick(random, 1, rows));
    const IValue tree = tuple({torch::randn({rows, 3}), dict({{"a", torch::randn({2, rows})}, {"n", 7}}),
                               tuple({torch::randn({2, 3, rows}), IValue(), "text"})});
    const ChunkSpec spec = ChunkSpec::Items{TensorChunkSpec{0},
                                            ChunkSpec::Entries{{"a", TensorChunkSpec{1}}, {"n", Replicate{}}},
                                            TensorChunkSpec{-1}};
    const std::vector<IValue> parts = split_tree(tree, chunks, "batch", spec);
    ASSERT_EQ(parts.size(), static_cast<std::size_t>(chunks));
    const FlatTree before = flatten(tree), after = flatten(merge_chunks(parts, spec));
    ASSERT_EQ(before.structure, after.structure);
    for (std::size_t i = 0; i < before.leaves.size(); ++i)
      EXPECT_TRUE(leaves_equal(before.leaves[i], after.leaves[i]));
  }
}

TEST(ValueSplit, ReplicatesScalarsByDefaultAndTensorsOnRequest) {
  const at::Tensor mask = torch::ones({5});
  const Chunks got = split_args_kwargs_into_chunks(
      {torch::ones({4, 2}), mask, 3, torch::scalar_tensor(2)}, {{"name", "x"}, {"none", IValue()}}, 2,
      ChunkSpec::Items{TensorChunkSpec{0}, Replicate{}, Replicate{}, Replicate{}});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(got.args[i][1].toTensor().is_same(mask));
    EXPECT_EQ(got.args[i][2].toInt(), 3);
    EXPECT_EQ(got.kwargs[i].at("name").toStringRef(), "x");
    EXPECT_TRUE(got.kwargs[i].at("none").isNone());
  }
  EXPECT_EQ(split_args_kwargs_into_chunks({torch::ones({4}), torch::scalar_tensor(2)}, {}, 2)
                .args[1][1]
                .toTensor()
                .dim(),
            0);
}

TEST(ValueSplit, ReplicatesEverythingIfNothingIsSplit) {
  const Chunks got = split_args_kwargs_into_chunks({5}, {}, 3);
  EXPECT_EQ(got.args.size(), 3u);
  EXPECT_TRUE(got.rows.empty());
  EXPECT_EQ(split_args_kwargs_into_chunks({}, {}, 2).kwargs.size(), 2u);
}

TEST(ValueSplit, ReportsEveryMismatchedTensorInOneError) {
  const std::string few = test::error_message<ShapeError>([] {
    split_args_kwargs_into_chunks({torch::ones({3, 2})}, {{"y", torch::ones({2, 9})}}, 4);
  });
  EXPECT_THAT(few,
              AllOf(HasSubstr("4 microbatches"), HasSubstr("args[0] has only 3 rows in dim 0 (shape [3, 2])"),
                    HasSubstr("kwargs.y has only 2 rows in dim 0 (shape [2, 9])")));
  const std::string differ = test::error_message<ShapeError>([] {
    split_args_kwargs_into_chunks(
        {torch::ones({8}), dict({{"m", torch::ones({10, 3})}}), torch::ones({8, 1})}, {}, 4);
  });
  EXPECT_THAT(differ,
              AllOf(HasSubstr("args[1].m has 10 rows in dim 0 (shape [10, 3]), which disagrees with args[0] "
                              "with 8 rows in dim 0 (shape [8])"),
                    HasSubstr("use a chunk spec"), Not(HasSubstr("args[2]"))));
  EXPECT_ERROR(split_args_kwargs_into_chunks({torch::ones({8})}, {}, 0), UsageError,
               "a batch cannot be split into 0 microbatches");
  EXPECT_ERROR(split_args_kwargs_into_chunks({torch::ones({8})}, {}, 2, ChunkSpec::dims({1})), ShapeError,
               "a tensor of 1 dims cannot be split along dim 1");
}

TEST(ValueSplit, SplitsTensorsWithSpecIndependently) {
  const at::Tensor x = torch::randn({128, 2}), y = torch::randn({256, 3}), z = torch::randn({4, 512});
  const Chunks got = split_args_kwargs_into_chunks({x, y}, {{"z", z}}, 2, ChunkSpec::dims({0, 0}),
                                                   ChunkSpec::named_dims({{"z", 1}}));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(got.args[i][0].toTensor().equal(torch::tensor_split(x, 2)[i]));
    EXPECT_TRUE(got.args[i][1].toTensor().equal(torch::tensor_split(y, 2)[i]));
    EXPECT_TRUE(got.kwargs[i].at("z").toTensor().equal(torch::tensor_split(z, 2, 1)[i]));
  }
  EXPECT_EQ(got.rows, (std::vector<std::int64_t>{64, 64}));  // of the first one
  // Tensors with chunk specs keep their own sizes; those without must agree with each other.
  const Chunks uneven = split_args_kwargs_into_chunks({torch::ones({10}), torch::ones({7})},
                                                      {{"a", torch::ones({5})}, {"b", torch::ones({5})}}, 3,
                                                      ChunkSpec(TensorChunkSpec{}));
  EXPECT_EQ(uneven.args[1][0].toTensor().size(0), 3);
  EXPECT_EQ(uneven.args[1][1].toTensor().size(0), 2);
  EXPECT_EQ(uneven.kwargs[0].at("a").toTensor().size(0), 2);
  EXPECT_THAT(test::error_message<ShapeError>([] {
                split_args_kwargs_into_chunks({torch::ones({10})},
                                              {{"a", torch::ones({5})}, {"b", torch::ones({6})}}, 3,
                                              ChunkSpec(TensorChunkSpec{}));
              }),
              AllOf(HasSubstr("kwargs.b has 6 rows"), HasSubstr("disagrees with kwargs.a")));
  // Too few rows are always an error.
  EXPECT_ERROR(split_args_kwargs_into_chunks({torch::ones({10}), torch::ones({2})}, {}, 3,
                                             ChunkSpec(TensorChunkSpec{})),
               ShapeError, "args[1] has only 2 rows");
}

TEST(ValueSplit, RejectsMismatchedSpecWithPath) {
  const Args args = {torch::ones({4}), 3};
  EXPECT_THAT(test::error_message<UsageError>(
                  [&] { split_args_kwargs_into_chunks(args, {}, 2, ChunkSpec::dims({0})); }),
              HasSubstr("(TensorChunkSpec(0)) does not fit (*, *)"));
  EXPECT_THAT(test::error_message<UsageError>([&] {
                split_args_kwargs_into_chunks(args, {}, 2, ChunkSpec::dims({0, 0}));
              }),
              HasSubstr("kind int cannot be split (tensor args[1])"));
  EXPECT_ERROR(
      split_args_kwargs_into_chunks(args, {{"a", 1}}, 2, std::nullopt, ChunkSpec::named_dims({{"b", 0}})),
      UsageError, "does not fit {a: *}");
  EXPECT_ERROR(split_tree(torch::ones({4}), 2, "x", ChunkSpec(Reducer::sum())), UsageError,
               "a Reducer can only merge chunks");
}

TEST(ValueMerge, ConcatenatesTensorsAndRequiresEqualScalars) {
  const IValue merged = merge_chunks({tuple({torch::ones({2}), 5}), tuple({torch::zeros({1}), 5})});
  EXPECT_TRUE(flatten(merged).leaves[0].toTensor().equal(torch::tensor({1.0f, 1.0f, 0.0f})));
  EXPECT_THAT(test::error_message<UsageError>([] {
                merge_chunks({tuple({4}), tuple({5})});
              }),
              HasSubstr("chunk[0]"));
  EXPECT_ERROR(merge_chunks({torch::ones({1}), tuple({torch::ones({1})})}), UsageError,
               "chunk 1 is (*,), chunk 0 is *\nhint: return values of the same structure");
  EXPECT_ERROR(merge_chunks({torch::ones({1}), torch::ones({1, 1})}), ShapeError,
               "chunk 0 has 1 dims, chunk 1 has 2");
  EXPECT_ERROR(merge_chunks({torch::ones({2}), torch::ones({2})}, ChunkSpec(TensorChunkSpec{1})), ShapeError,
               "tensors of 1 dims cannot be concatenated along dim 1");
  EXPECT_ERROR(merge_chunks({}), UsageError,
               "no chunks to merge\nhint: pass the result of each microbatch, at least one");
}

TEST(ValueMerge, ReducesLossesBySumMeanOrUserFunction) {
  const std::vector<IValue> losses = {torch::scalar_tensor(1.0), torch::scalar_tensor(2.0),
                                      torch::scalar_tensor(6.0)};
  EXPECT_EQ(merge_chunks(losses, ChunkSpec(Reducer::sum())).toTensor().item<float>(), 9);
  EXPECT_EQ(merge_chunks(losses, ChunkSpec(Reducer::mean())).toTensor().item<float>(), 3);
  const Reducer largest = Reducer::fold(0.0, [](const IValue& a, const IValue& b) -> IValue {
    return std::max(a.toDouble(), b.toTensor().item<double>());
  });
  EXPECT_EQ(merge_chunks(losses, ChunkSpec(largest)).toDouble(), 6);
  EXPECT_EQ(merge_chunks({1, 2}, ChunkSpec(Reducer::sum())).toInt(), 3);
}

// A user-defined type with rows, such as a block mask.
struct Mask : torch::CustomClassHolder {
  explicit Mask(at::Tensor rows_in) : rows(std::move(rows_in)) {}
  at::Tensor rows;
};

IValue mask(const at::Tensor& rows) {
  return IValue::make_capsule(c10::make_intrusive<Mask>(rows));
}

const at::Tensor& rows_of(const IValue& value) {
  return dynamic_cast<const Mask&>(*value.toCapsule()).rows;
}

TEST(ValueSplit, SplitsRegisteredTypesByUserFunctions) {
  const IValue six = mask(torch::arange(6));
  EXPECT_TRUE(split_tree(six, 2, "x")[1].is(six)) << "unknown types are replicated";
  register_splitter(typeid(Mask), {[](const IValue& value) -> std::optional<std::int64_t> {
                                     if (rows_of(value).size(0) == 1) return std::nullopt;  // broadcasts
                                     return rows_of(value).size(0);
                                   },
                                   [](const IValue& value, const std::vector<std::int64_t>& sizes) {
                                     std::vector<IValue> parts;
                                     for (const auto& part : rows_of(value).split_with_sizes(sizes)) {
                                       parts.push_back(mask(part));
                                     }
                                     return parts;
                                   },
                                   [](const std::vector<IValue>& parts) {
                                     std::vector<at::Tensor> rows;
                                     for (const IValue& part : parts) rows.push_back(rows_of(part));
                                     return mask(torch::cat(rows));
                                   }});
  const Chunks got = split_args_kwargs_into_chunks({torch::ones({6})}, {{"mask", six}}, 4);
  EXPECT_TRUE(rows_of(got.kwargs[1].at("mask")).equal(torch::tensor({2, 3})));
  std::vector<IValue> parts;
  for (const Kwargs& part : got.kwargs) parts.push_back(part.at("mask"));
  EXPECT_TRUE(rows_of(merge_chunks(parts)).equal(torch::arange(6)));
  EXPECT_ERROR(split_args_kwargs_into_chunks({torch::ones({8}), six}, {}, 4), ShapeError,
               "args[1] has 6 rows, which disagrees with args[0]");
  EXPECT_NO_THROW(split_args_kwargs_into_chunks({torch::ones({8}), mask(torch::ones({1}))}, {}, 4));
}

TEST(ValueLossReduction, WeightsGiveGradientOfFullBatch) {
  const at::Tensor w = torch::randn({3}, torch::dtype(torch::kDouble).requires_grad(true));
  const at::Tensor x = torch::randn({10, 3}, torch::kDouble);
  const at::Tensor target = torch::randint(0, 2, {10}, torch::kLong);  // 0: ignored
  const auto row_loss = [&](const at::Tensor& rows) { return rows.matmul(w).pow(2); };
  const auto counted = [](const IValue& t) { return t.toTensor().sum().item<double>(); };

  struct Case {
    runtime::LossReduction reduction;
    std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> loss;
  };
  const Case cases[] = {
      {runtime::LossReduction::mean(),
       [&](const at::Tensor& r, const at::Tensor&) { return row_loss(r).mean(); }},
      {runtime::LossReduction::sum(),
       [&](const at::Tensor& r, const at::Tensor&) { return row_loss(r).sum(); }},
      {runtime::LossReduction::weighted(counted),
       [&](const at::Tensor& r, const at::Tensor& t) { return (row_loss(r) * t).sum() / t.sum(); }},
  };
  for (const Case& each : cases) {
    // Both halves of the target contain a valid row, so that no microbatch divides by zero.
    at::Tensor labels = target.clone();
    labels.slice(0, 0, 10, 2).fill_(1);
    const at::Tensor full_gradient = torch::autograd::grad({each.loss(x, labels)}, {w})[0];
    const Chunks parts = split_args_kwargs_into_chunks({x, labels}, {}, 4);
    std::vector<IValue> targets;
    for (const Args& part : parts.args) targets.push_back(part[1]);
    const std::vector<double> seeds = each.reduction.initial_gradients(parts.rows, targets);
    at::Tensor total = torch::zeros_like(w);
    std::vector<at::Tensor> losses;
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      losses.push_back(each.loss(parts.args[i][0].toTensor(), parts.args[i][1].toTensor()));
      total += torch::autograd::grad({losses[i]}, {w}, {torch::full_like(losses[i], seeds[i])})[0];
    }
    EXPECT_TRUE(total.allclose(full_gradient, 1e-12, 1e-12));
    EXPECT_TRUE(runtime::LossReduction::reduce(losses, seeds).allclose(each.loss(x, labels), 1e-12, 1e-12));
  }
}

TEST(ValueLossReduction, RejectsInvalidWeights) {
  const auto with = [](double weight) {
    return runtime::LossReduction::weighted([weight](const IValue&) { return weight; });
  };
  EXPECT_ERROR(with(-1).initial_gradients({1}, {IValue()}), UsageError, "the weight of a loss is -1");
  EXPECT_ERROR(with(std::numeric_limits<double>::quiet_NaN()).initial_gradients({1}, {IValue()}), UsageError,
               "the weight of a loss is nan (microbatch 0)\nhint: weights must be finite");
  EXPECT_ERROR(with(1).initial_gradients({1, 1}, {IValue()}), UsageError,
               "need a target for each microbatch: 1 targets, 2 microbatches");
  EXPECT_ERROR(runtime::LossReduction::mean().initial_gradients({}, {}), UsageError,
               "a mean of losses needs the number of rows");
  EXPECT_ERROR(runtime::LossReduction::reduce({}, {}), UsageError, "0 losses cannot be reduced");
  for (const double denominator : {-1.0, 0.0, std::numeric_limits<double>::infinity()})
    EXPECT_ERROR(with(1).initial_gradients({1}, {IValue()}, denominator), UsageError,
                 "the weights of the losses sum to 1 and cannot be divided by")
        << denominator;
  EXPECT_ERROR(runtime::LossReduction::mean_over_valid_labels().initial_gradients({1}, {tuple({})}),
               UsageError, "a target that is a single tensor");
}

TEST(ValueLossReduction, SkipsMicrobatchesWithZeroWeight) {
  const runtime::LossReduction reduction =
      runtime::LossReduction::weighted([](const IValue& t) { return t.toDouble(); });
  const at::Tensor nan = torch::scalar_tensor(std::numeric_limits<double>::quiet_NaN()),
                   three = torch::scalar_tensor(3.0), five = torch::scalar_tensor(5.0);
  const auto seeds = reduction.initial_gradients({4, 4}, {0.0, 2.0});
  EXPECT_THAT(seeds, testing::ElementsAre(0.0, 1.0));
  EXPECT_EQ(runtime::LossReduction::reduce({nan, three}, seeds).item<double>(), 3.0);
  EXPECT_EQ(
      runtime::LossReduction::reduce({three, five, nan}, reduction.initial_gradients({}, {1.0, 3.0, 0.0}))
          .item<double>(),
      3.0 / 4 + 5.0 * 3 / 4);
  // No weight at all: zero gradients and no NaN.
  const auto none = reduction.initial_gradients({4, 4}, {0.0, 0.0});
  EXPECT_THAT(none, testing::ElementsAre(0.0, 0.0));
  EXPECT_EQ(runtime::LossReduction::reduce({nan, nan}, none).item<double>(), 0.0);
  // NaN is not hidden if its weight is not 0.
  EXPECT_TRUE(std::isnan(runtime::LossReduction::reduce({nan, three}, {0.5, 0.5}).item<double>()));
}

TEST(ValueLossReduction, RoundsLikeOperators) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    torch::manual_seed(3);
    std::vector<at::Tensor> losses;
    std::vector<double> factors;
    at::Tensor expected;
    for (int i = 0; i < 100; ++i) {
      losses.push_back((torch::randn({}, at::kDouble) * std::pow(10.0, i % 7)).to(type).requires_grad_(true));
      factors.push_back(i % 10 == 9 ? 0 : 1.0 / (3 + i));
      if (factors[i] == 0) continue;
      const at::Tensor part = losses[i].detach() * factors[i];
      expected = expected.defined() ? expected + part : part;
    }
    const at::Tensor sum = runtime::LossReduction::reduce(losses, factors);
    EXPECT_TRUE(sum.equal(expected)) << type;
    EXPECT_EQ(sum.scalar_type(), type);
    EXPECT_FALSE(sum.requires_grad());
  }
}

TEST(ValueLossReduction, SumsWithAndWithoutTargets) {
  EXPECT_THAT(runtime::LossReduction::sum().initial_gradients({3, 3, 2}, {}),
              testing::ElementsAre(1.0, 1.0, 1.0));
  EXPECT_THAT(runtime::LossReduction::sum().initial_gradients({}, {IValue(), IValue()}),
              testing::ElementsAre(1.0, 1.0));
  EXPECT_EQ(runtime::LossReduction::sum().weight_of(torch::ones({3})), std::nullopt);
  EXPECT_EQ(runtime::LossReduction::mean().weight_of(torch::ones({3})), std::nullopt);
}

TEST(ValueLossReduction, DividesByDenominatorOfFullBatch) {
  // Two parts of a batch with 1 and 5 valid labels: each is divided by 6 / 2, and their mean is that of the
  // full batch.
  const runtime::LossReduction reduction = runtime::LossReduction::mean_over_valid_labels();
  const at::Tensor few = torch::tensor({7, -100, -100, -100}),
                   many = torch::tensor({{1, 2, 3}, {-100, 4, 5}});
  EXPECT_EQ(reduction.weight_of(few), 1.0);
  EXPECT_EQ(reduction.weight_of(many), 5.0);
  EXPECT_EQ(runtime::LossReduction::mean_over_valid_labels(7).weight_of(few), 3.0);
  EXPECT_THAT(reduction.initial_gradients({2, 2}, {few.slice(0, 0, 2), few.slice(0, 2)}, 3.0),
              testing::ElementsAre(1.0 / 3, 0.0));
  EXPECT_THAT(reduction.initial_gradients({1, 1}, {many[0], many[1]}, 3.0),
              testing::ElementsAre(1.0, 2.0 / 3));
  EXPECT_THAT(runtime::LossReduction::mean().initial_gradients({3, 2}, {}, 10.0),
              testing::ElementsAre(0.3, 0.2));
  EXPECT_THAT(reduction.initial_gradients({2}, {few.slice(0, 2)}, 0.0), testing::ElementsAre(0.0));
}

}  // namespace
}  // namespace penstock::value
