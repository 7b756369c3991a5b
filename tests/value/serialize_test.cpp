// Serialization of trees: round trips, and rejection of damaged bytes.
#include "value/serialize.h"

#include "support/error_message.h"
#include "value/random_trees.h"

#include <penstock/base/error.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>

namespace penstock::value {
namespace {

using c10::IValue;
using test::Random;

void expect_same(const IValue& a, const IValue& b) {
  const FlatTree x = flatten(a), y = flatten(b);
  EXPECT_EQ(x.structure, y.structure);
  ASSERT_EQ(x.leaves.size(), y.leaves.size());
  for (std::size_t i = 0; i < x.leaves.size(); ++i) {
    EXPECT_TRUE(leaves_equal(x.leaves[i], y.leaves[i]));
    if (x.leaves[i].isTensor() && x.leaves[i].toTensor().defined()) {
      EXPECT_EQ(x.leaves[i].toTensor().requires_grad(), y.leaves[i].toTensor().requires_grad());
    }
  }
}

TEST(ValueSerialize, RoundTripsAnyTree) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const IValue tree = test::random_tree(random, 4);
    expect_same(tree, deserialize(serialize(tree)));
  }
}

TEST(ValueSerialize, RoundTripsTensorsOfEveryLayout) {
  const at::Tensor base = torch::arange(24).to(torch::kFloat).view({2, 3, 4});
  const at::Tensor tensors[] = {
      base.transpose(0, 2),
      base.slice(2, 0, 4, 2),
      torch::arange(3).expand({4, 3}),
      torch::arange(120).view({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
      torch::empty({0, 5}),
      torch::scalar_tensor(std::int64_t{1} << 62, torch::kLong),
      torch::complex(base, base + 1).conj(),
  };
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor back = deserialize(serialize(tensor)).toTensor();
    EXPECT_TRUE(back.is_contiguous());
    EXPECT_EQ(back.sizes(), tensor.sizes());
    EXPECT_TRUE(back.equal(tensor.resolve_conj()));
  }
  const at::Tensor undefined = deserialize(serialize(at::Tensor())).toTensor();
  EXPECT_FALSE(undefined.defined());
}

TEST(ValueSerialize, RoundTripsMetadata) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const TreeMeta meta = TreeMeta::of(test::random_tree(random, 3));
    EXPECT_EQ(deserialize_meta(serialize_meta(meta)), meta);
  }
  const TreeMeta expanded = TreeMeta::of(torch::ones({1, 3}).expand({5, 3}));
  EXPECT_EQ(deserialize_meta(serialize_meta(expanded)), expanded);
}

TEST(ValueSerialize, IsCompact) {
  EXPECT_LE(serialize(1).size(), 4u);
  EXPECT_LE(serialize(torch::ones({100})).size(), 400u + 8u);
}

TEST(ValueSerialize, ReportsPathOfUnsupportedValue) {
  const IValue tree = c10::ivalue::Tuple::create({IValue(1), IValue(at::Device(at::kCPU))});
  try {
    serialize(tree);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.context().tensor, "value[1]");
  }
  EXPECT_ERROR(serialize(torch::ones({2, 2}).to_sparse()), UsageError, "only dense, plain tensors");
}

TEST(ValueSerialize, RejectsEveryTruncation) {
  Random random(7);
  for (int round = 0; round < 20; ++round) {
    const auto bytes = serialize(c10::ivalue::Tuple::create({test::random_tree(random, 3), IValue("end")}));
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_ERROR(deserialize(std::span(bytes.data(), size)), ParseError,
                   " of " + std::to_string(size) + ": ")
          << size << " of " << bytes.size();
    }
    auto longer = bytes;
    longer.push_back(0);
    EXPECT_ERROR(deserialize(longer), ParseError, "1 extra bytes at the end");
  }
}

// A flipped bit in an element gives another element; anywhere else the reader must reject it or return
// another valid tree. It must not crash, hang, or allocate more than a small multiple of the message size.
TEST(ValueSerialize, RejectsDamagedBytesOrReadsValidTree) {
  const char* chosen = std::getenv("PENSTOCK_FUZZ_ROUNDS");
  const int rounds = chosen != nullptr ? std::atoi(chosen) : 20000;
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("seed " + std::to_string(round));
    Random random(round);
    auto bytes = round % 2 == 0 ? serialize(test::random_tree(random, 3))
                                : serialize_meta(TreeMeta::of(test::random_tree(random, 3)));
    const std::int64_t flips = test::pick(random, 1, 4);
    for (std::int64_t i = 0; i < flips; ++i) {
      const auto at =
          static_cast<std::size_t>(test::pick(random, 0, static_cast<std::int64_t>(bytes.size()) - 1));
      bytes[at] = test::pick(random, 0, 1) != 0 ? static_cast<std::uint8_t>(test::pick(random, 0, 255))
                                                : bytes[at] ^ (1u << test::pick(random, 0, 7));
    }
    try {
      if (round % 2 == 0) {
        flatten(deserialize(bytes));
      } else {
        deserialize_meta(bytes);
      }
    } catch (const ParseError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, rounds / 10);
}

TEST(ValueSerialize, RejectsDeepNestingAndHugeCounts) {
  std::vector<std::uint8_t> nested(100000, 2);  // a tuple of two, of two, …
  nested[0] = 0xA1;
  EXPECT_ERROR(deserialize(nested), ParseError, "nested too deeply");
  ByteWriter out;
  out.u8(0xA1);
  out.u8(1);  // a list
  out.u8(0);
  out.unsigned_int(std::uint64_t{1} << 60);
  EXPECT_ERROR(deserialize(out.take()), ParseError, "the message is too short for");
}

}  // namespace
}  // namespace penstock::value
