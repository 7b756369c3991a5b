// Tests of the interpreter: modes, lifetimes, errors.
#include "graph/run/interpreter.h"

#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/graph/error.h>
#include <penstock/graph/graph_text.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace penstock::graph {
namespace {

TEST(GraphInterpreter, FreesValuesAfterLastUse) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x,), {})
  %a = aten::relu(%x)
  %b = aten::add.Tensor(%a, %a, 1)
  %c = aten::relu(%b)
  %d = aten::relu(%c)
  return %d
})");
  at::Tensor x = at::rand({4});
  std::vector<std::size_t> uses;
  const at::Tensor watched = x;
  std::vector<c10::IValue> inputs;
  inputs.emplace_back(std::move(x));
  const at::NoGradGuard no_grad;
  Interpreter(graph).run(std::move(inputs), {}, [&](std::size_t) { uses.push_back(watched.use_count()); });
  EXPECT_EQ(uses, (std::vector<std::size_t>{1, 1, 1, 1}));
}

TEST(GraphInterpreter, KeepsGradModesOfNodesAndCaller) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x,), {})
  %a = aten::mul.Tensor(%x, 2)
  %b = aten::mul.Tensor(%a, 3) no_grad
  %c = aten::mul.Tensor(%b, 3) grad
  return (%a, %b, %c)
})");
  const Interpreter interpreter(graph);
  const at::Tensor x = at::rand({4}).requires_grad_();
  auto out = interpreter.run({x}, {});
  EXPECT_TRUE(out[0].toTensor().requires_grad());
  EXPECT_FALSE(out[1].toTensor().requires_grad());
  EXPECT_TRUE(at::GradMode::is_enabled());
  const at::NoGradGuard no_grad;
  out = interpreter.run({x}, {});
  EXPECT_FALSE(out[0].toTensor().requires_grad());
  EXPECT_FALSE(at::GradMode::is_enabled());
}

TEST(GraphInterpreter, NamesFailingOperatorAndRestoresModes) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x,), {})
  %a = aten::view(%x, [3]) @ head.flatten no_grad
  return %a
})");
  try {
    Interpreter(graph).run({at::rand({4})}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("aten::view of module head.flatten"));
  }
  EXPECT_TRUE(at::GradMode::is_enabled());
}

TEST(GraphInterpreter, MovesConstantDevices) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((), {})
  %a = aten::zeros([3], float32, strided, device("cpu"), False)
  return %a
})");
  EXPECT_TRUE(Interpreter(graph, at::Device(at::kMeta)).run({}, {})[0].toTensor().is_meta());
  // Without an explicit device, a factory function uses the device of the stage, and a `*_like` function that
  // of its argument.
  const Graph silent = parse_graph(R"(graph {
  inputs ((%x,), {})
  %a = aten::zeros([3], None, None, None, None)
  %b = aten::zeros_like(%x, None, None, None, None, None)
  return (%a, %b)
})");
  const auto made = Interpreter(silent, at::Device(at::kMeta)).run({at::ones({3})}, {});
  EXPECT_TRUE(made[0].toTensor().is_meta());
  EXPECT_TRUE(made[1].toTensor().is_cpu());
}

// Export asserts the dtypes that it has recorded, which autocast and mixed precision change.
TEST(GraphInterpreter, AcceptsOtherDtypesThanRecorded) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x,), {})
  aten::_assert_tensor_metadata(%x, None, None, float32, device("cpu"), strided)
  %a = aten::to.dtype(%x, float32, False, False, None)
  return %a
})");
  const Interpreter interpreter(graph);
  EXPECT_EQ(interpreter.run({at::ones({2}, at::kBFloat16)}, {})[0].toTensor().scalar_type(), at::kFloat);
  const Graph sized = parse_graph(R"(graph {
  inputs ((%x,), {})
  aten::_assert_tensor_metadata(%x, [3], None, float32, None, None)
  return %x
})");
  EXPECT_ERROR(Interpreter(sized).run({at::ones({2})}, {}), OperatorError, "aten::_assert_tensor_metadata");
}

TEST(GraphInterpreter, WritesBackMutations) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x,), {})
  buffer %b : float32[2] = "b"
  %a = aten::add.Tensor(%b, %x, 1)
  write %b <- %a
  return %a
})");
  const std::vector<at::Tensor> slots = {at::ones({2})};
  Interpreter(graph).run({at::ones({2})}, slots);
  EXPECT_TRUE(at::equal(slots[0], at::full({2}, 2.0)));
}

}  // namespace
}  // namespace penstock::graph
