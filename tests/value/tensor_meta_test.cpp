// Tensor metadata: conversion from and to tensors, and one error with every difference.
#include "support/error_message.h"

#include <penstock/value/tensor_meta.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace penstock::value {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ValueTensorMeta, RoundTripsThroughEmptyTensor) {
  const at::Tensor tensors[] = {
      torch::empty({0}),
      torch::empty({3, 0, 2}, torch::kLong),
      torch::scalar_tensor(2.5),
      torch::ones({1, 4}).expand({3, 4}),
      torch::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
      torch::ones({4, 6}).t(),
      torch::ones({4, 6}).slice(1, 0, 6, 2),
      torch::ones({2}, torch::dtype(torch::kBFloat16).requires_grad(true)),
      torch::ones({2}, torch::kBool),
  };
  for (const at::Tensor& tensor : tensors) {
    const TensorMeta meta = TensorMeta::of(tensor);
    SCOPED_TRACE(to_string(meta));
    EXPECT_EQ(at::IntArrayRef(meta.shape), tensor.sizes());
    EXPECT_EQ(at::IntArrayRef(meta.stride), tensor.strides());
    EXPECT_EQ(TensorMeta::of(meta.empty()), meta);
    EXPECT_EQ(meta.nbytes(), tensor.nbytes());
    const TensorMeta dense = meta.dense();
    const at::Tensor buffer = dense.empty();
    EXPECT_TRUE(buffer.is_non_overlapping_and_dense());
    EXPECT_EQ(dense == meta, tensor.is_non_overlapping_and_dense());
    EXPECT_FALSE(meta.grad().requires_grad);
  }
}

TEST(ValueTensorMeta, PrintsOnlyNonContiguousStrides) {
  EXPECT_EQ(to_string(TensorMeta::of(torch::ones({2, 3}))), "float32[2, 3]");
  EXPECT_EQ(to_string(TensorMeta::of(torch::ones({2, 3}).t())), "float32[3, 2] stride [1, 3]");
  EXPECT_EQ(to_string(TensorMeta::of(torch::scalar_tensor(1, torch::kLong))), "int64[]");
}

TEST(ValueTensorMeta, IgnoresRequiresGradAndStridesOfSizeOneDims) {
  const at::Tensor row = torch::ones({1, 4});
  EXPECT_TRUE(differences(TensorMeta::of(row), TensorMeta::of(torch::ones({4, 1}).t())).empty());
  EXPECT_TRUE(
      differences(TensorMeta::of(row), TensorMeta::of(torch::ones({1, 4}, torch::requires_grad()))).empty());
  EXPECT_FALSE(
      differences(TensorMeta::of(torch::ones({4, 4})), TensorMeta::of(torch::ones({1, 4}).expand({4, 4})))
          .empty());
}

TEST(ValueValidate, ReportsEveryDifferenceInOneError) {
  const std::vector<std::optional<TensorMeta>> expected = {
      TensorMeta::of(torch::ones({2, 3})), TensorMeta::of(torch::ones({4})),
      TensorMeta::of(torch::ones({2, 2})), std::nullopt, TensorMeta::of(torch::ones({1}))};
  const std::vector<at::Tensor> actual = {torch::ones({2, 4}, torch::kDouble), torch::ones({4}),
                                          torch::ones({2, 2}).t(), torch::ones({7}), at::Tensor()};
  ErrorContext context;
  context.stage = StageId(3);
  const std::string text = test::error_message<ShapeError>([&] {
    validate_tensors_metadata(expected, actual, "outputs", context, {"a", "b", "c", "d", "e"});
  });
  EXPECT_THAT(
      text, HasSubstr("a has shape [2, 4], expected [2, 3], dtype float64, expected float32, stride [4, 1], "
                      "expected [3, 1]"));
  EXPECT_THAT(text, HasSubstr("c has stride [1, 2], expected [2, 1]"));
  EXPECT_THAT(text, HasSubstr("d is float32[7], expected no tensor"));
  EXPECT_THAT(text, HasSubstr("e is not a tensor, expected float32[1]"));
  EXPECT_THAT(text, HasSubstr("stage 3"));
  EXPECT_THAT(text, Not(HasSubstr("b has")));
}

TEST(ValueValidate, ChecksCountAndReportsPositions) {
  const std::vector<std::optional<TensorMeta>> expected = {TensorMeta::of(torch::ones({2}))};
  EXPECT_THAT(
      test::error_message<ShapeError>([&] {
        validate_tensors_metadata(expected, {torch::ones({3}), torch::ones({2})}, "inputs");
      }),
      ::testing::AllOf(HasSubstr("inputs has 2 tensors, expected 1"), HasSubstr("inputs[0] has shape [3]")));
  EXPECT_NO_THROW(validate_tensors_metadata(expected, {torch::ones({2})}, "inputs"));
}

TEST(ValueValidate, ChecksSingleTensor) {
  const TensorMeta meta =
      TensorMeta::of(torch::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_NO_THROW(validate_tensor_metadata(meta, meta.empty(), "x"));
  EXPECT_THAT(test::error_message<ShapeError>([&] {
                validate_tensor_metadata(meta, torch::ones({2, 3, 4, 5}), "args[0].x");
              }),
              HasSubstr("args[0].x has stride [60, 20, 5, 1], expected [60, 1, 15, 3]"));
  EXPECT_ERROR(validate_tensor_metadata(TensorMeta::of(torch::scalar_tensor(1)), torch::ones({1}), "x"),
               ShapeError, "x has shape [1], expected []");
  EXPECT_ERROR(validate_tensor_metadata(TensorMeta::of(torch::empty({0})), torch::empty({0, 1}), "x"),
               ShapeError, "x has shape [0, 1], expected [0]");
}

TEST(ValueValidate, ChecksTreeByStructureAndPath) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("mask", torch::ones({3}));
  const c10::IValue tree = c10::ivalue::Tuple::create({dict, c10::IValue(4)});
  const TreeMeta meta = TreeMeta::of(tree);
  EXPECT_NO_THROW(validate_tree_metadata(meta, tree, "args"));
  dict.insert_or_assign("mask", torch::ones({4}));
  EXPECT_THAT(test::error_message<ShapeError>([&] { validate_tree_metadata(meta, tree, "args"); }),
              HasSubstr("args[0].mask has shape [4], expected [3]"));
  EXPECT_THAT(
      test::error_message<ShapeError>([&] { validate_tree_metadata(meta, torch::ones({3}), "args"); }),
      HasSubstr("args has the structure *, expected ({mask: *}, *)"));
}

TEST(ValueTreeMeta, OfArgumentsEqualsThatOfTuple) {
  const std::vector<c10::IValue> args{torch::ones({2, 3}), 4};
  EXPECT_EQ(TreeMeta::of(args), TreeMeta::of(c10::ivalue::Tuple::create(args)));
  EXPECT_EQ(TreeMeta::of({torch::ones({2})}), TreeMeta::of(torch::ones({2})));  // braces around one value
}

TEST(ValueTensorMeta, RejectsUndefinedTensors) {
  EXPECT_ERROR(TensorMeta::of(at::Tensor()), UsageError, "an undefined tensor has no metadata");
  EXPECT_ERROR(TensorMeta::of(torch::ones({2, 2}).to_sparse()), UsageError,
               "only strided tensors have metadata");
}

}  // namespace
}  // namespace penstock::value
