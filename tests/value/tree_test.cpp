// Value trees: flattening and rebuilding, paths, detaching.
#include "support/error_message.h"
#include "value/random_trees.h"

#include <penstock/base/error.h>
#include <penstock/value/tree.h>

#include <gtest/gtest.h>
#include <torch/types.h>

namespace penstock::value {
namespace {

using c10::IValue;
using test::dict;
using test::tuple;

TEST(ValueTree, FlattensDepthFirstWithPathOfEveryLeaf) {
  c10::List<IValue> list(c10::AnyType::get());
  list.push_back(1);
  list.push_back(IValue());
  const IValue tree = tuple({dict({{"mask", 2}, {"ids", list}}), "text", tuple({3.5})});
  const FlatTree flat = flatten(tree);
  ASSERT_EQ(flat.leaves.size(), 5u);
  EXPECT_EQ(flat.leaves[0].toInt(), 2);
  EXPECT_TRUE(flat.leaves[2].isNone());
  EXPECT_EQ(flat.leaves[4].toDouble(), 3.5);
  EXPECT_EQ(to_string(flat.structure), "({mask: *, ids: [*, *]}, *, (*,))");
  EXPECT_EQ(flat.structure.paths("args"),
            (std::vector<std::string>{"args[0].mask", "args[0].ids[0]", "args[0].ids[1]", "args[1]",
                                      "args[2][0]"}));
}

TEST(ValueTree, KeepsElementTypesOfListsAndDicts) {
  const IValue tensors = std::vector<at::Tensor>{torch::zeros({2}), torch::ones({2})};
  EXPECT_TRUE(map_tensors(tensors, [](const at::Tensor& t) { return t + 1; }).isTensorList());
  const IValue numbers = map_leaves(tensors, [](const IValue&) { return IValue(7); });
  ASSERT_TRUE(numbers.isList());
  EXPECT_FALSE(numbers.isTensorList());
  EXPECT_EQ(numbers.toList().get(1).toIValue().toInt(), 7);
  EXPECT_TRUE(
      map_leaves(IValue(std::vector<at::Tensor>{}), [](const IValue& v) { return v; }).isTensorList());

  c10::Dict<std::string, at::Tensor> typed;
  typed.insert("a", torch::zeros({1}));
  const FlatTree flat = flatten(typed);
  EXPECT_EQ(unflatten(flat.leaves, flat.structure).type()->str(), IValue(typed).type()->str());
}

TEST(ValueTree, RebuildsAnyTreeFromItsLeaves) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random random(seed);
    const IValue tree = test::random_tree(random, 4);
    const FlatTree flat = flatten(tree);
    const IValue again = unflatten(flat.leaves, flat.structure);
    EXPECT_EQ(again.type()->str(), tree.type()->str());
    const FlatTree second = flatten(again);
    EXPECT_EQ(second.structure, flat.structure);
    ASSERT_EQ(second.leaves.size(), flat.leaves.size());
    EXPECT_EQ(flat.structure.paths("x").size(), flat.leaves.size());
    for (std::size_t i = 0; i < flat.leaves.size(); ++i)
      EXPECT_TRUE(leaves_equal(flat.leaves[i], second.leaves[i]));
  }
}

TEST(ValueTree, DistinguishesStructures) {
  const Structure a = flatten(tuple({1, 2})).structure;
  EXPECT_EQ(a, flatten(tuple({torch::ones({2}), IValue()})).structure);
  EXPECT_NE(a, flatten(tuple({1, 2, 3})).structure);
  EXPECT_NE(a, flatten(tuple({1, tuple({2})})).structure);
  EXPECT_NE(flatten(dict({{"a", 1}})).structure, flatten(dict({{"b", 1}})).structure);
}

TEST(ValueTree, RejectsTooFewLeavesAndUnsupportedKeys) {
  EXPECT_ERROR(unflatten({1}, flatten(tuple({1, 2})).structure), UsageError,
               "has 2 leaves, but 1 were given");
  EXPECT_ERROR(unflatten({1, 2, 3}, flatten(tuple({1, 2})).structure), UsageError,
               "has 2 leaves, but 3 were given");
  c10::Dict<double, std::int64_t> unsupported;
  unsupported.insert(1.5, 2);
  EXPECT_ERROR(flatten(unsupported), UsageError, "has a key of type");
}

TEST(ValueTree, DetachKeepsRequiresGradAndSharesTensors) {
  const at::Tensor weight = torch::ones({3}, torch::requires_grad());
  const at::Tensor made = weight * 2;
  const at::Tensor plain = torch::ones({3});
  const DetachedArgs detached = flatten_args_detach(tuple({made, 5, dict({{"plain", plain}})}));
  ASSERT_EQ(detached.leaves.size(), 3u);
  const at::Tensor& first = detached.leaves[0].toTensor();
  EXPECT_TRUE(first.is_leaf());
  EXPECT_TRUE(first.requires_grad());
  EXPECT_EQ(first.data_ptr(), made.data_ptr());
  EXPECT_FALSE(detached.leaves[2].toTensor().requires_grad());
  EXPECT_TRUE(flatten_args(detached.args)[0].toTensor().is_same(first));
  EXPECT_TRUE(flatten_args(tuple({made}))[0].toTensor().is_same(made));
}

TEST(ValueTree, TensorsOfReturnsOnlyTensors) {
  const at::Tensor a = torch::ones({1}), b = torch::zeros({2});
  const auto found = tensors_of(tuple({a, 1, IValue(), at::Tensor(), tuple({b})}));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[1].is_same(b));
}

TEST(ValueTree, ComparesLeavesByValueAndType) {
  EXPECT_TRUE(leaves_equal(torch::ones({2}), torch::ones({2})));
  EXPECT_FALSE(leaves_equal(torch::ones({2}), torch::ones({3})));
  EXPECT_FALSE(leaves_equal(torch::ones({2}), torch::ones({2}, torch::kDouble)));
  EXPECT_FALSE(leaves_equal(1, 1.0));
  EXPECT_FALSE(leaves_equal(torch::ones({1}), 1));
  EXPECT_TRUE(leaves_equal("a", "a"));
  EXPECT_TRUE(leaves_equal(IValue(), IValue()));
}

}  // namespace
}  // namespace penstock::value
