// The text format of graphs: golden output, round trips, and strict errors.
#include "graph/passes/passes.h"
#include "graph/run/interpreter.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_text.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace penstock::graph {
namespace {

const std::string kGolden = R"(graph {
  inputs ((%x : float32["s0"=3, 4], %flag : bool = True), {"mask": %mask : bool[4]})
  symbol "s0" from 2 to None
  param %w : float32[4, 4] = "l.weight", "m.weight"
  volatile %b : float32[4] = "l.bias"
  %y = aten::linear(%x, %w, %b) @ l
  pipe_split
  %n : int "s0" = aten::sym_size.int(%y, 0)
  %m : int = scalar::mul(%n, 2)
  [%first, _] = aten::chunk(%y, 2, -1)
  %z = aten::reshape(%first, [%m, 1]) @ l@2.view@1 no_grad
  %d = aten::full([%n], 0.5, dtype=float64)
  return {"a": %z, 7: ([%m, None], "text", 1.5)}
}
)";

std::string without_keywords() {
  std::string text = kGolden;
  text.replace(text.find("dtype=float64"), 13, "float64, strided, device(\"cpu\"), False");
  return text;
}

TEST(GraphText, RoundTrips) {
  const std::string text = without_keywords();
  EXPECT_EQ(to_string(parse_graph(text)), text);
}

TEST(GraphText, RunsParsedGraph) {
  const Graph graph = parse_graph(without_keywords());
  const at::Tensor x = at::rand({3, 4}), w = at::rand({4, 4}), b = at::rand({4});
  const std::vector<at::Tensor> slots = {w, b};
  const auto out = Interpreter(graph).run({x, true, at::ones({4}, at::kBool)}, slots);
  ASSERT_EQ(out.size(), 5U);
  EXPECT_TRUE(at::equal(out[0].toTensor(), at::linear(x, w, b).chunk(2, -1)[0].reshape({6, 1})));
  EXPECT_EQ(out[1].toInt(), 6);
  EXPECT_TRUE(out[2].isNone());
  EXPECT_EQ(out[3].toStringRef(), "text");
}

TEST(GraphText, ReportsPositionOfErrors) {
  const auto parse_error = [](const std::string& from, const std::string& to) {
    std::string text = without_keywords();
    const std::size_t at = text.find(from);
    text.replace(at, from.size(), to);
    return test::error_message<ParseError>([&] { parse_graph(text); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(parse_error("%x, %w, %b", "%q, %w, %b"),
              HasSubstr("line 6, column 21: %q is read before it is defined"));
  EXPECT_THAT(parse_error("aten::linear", "aten::linaer"), HasSubstr("unknown operator aten::linaer"));
  EXPECT_THAT(parse_error("2, -1", "\"two\", -1"), HasSubstr("not of type int"));
  EXPECT_THAT(parse_error("scalar::mul", "scalar::mull"), HasSubstr("unknown scalar operator"));
  EXPECT_THAT(parse_error("%y = aten::linear(%x, %w, %b)", "%y = aten::linear(%x)"), HasSubstr("arguments"));
  EXPECT_THAT(parse_error("%m : int = ", "%n : int = "), HasSubstr("defined twice"));
  EXPECT_THAT(parse_error("\n}\n", "\n} more\n"), HasSubstr("after the end"));
}

TEST(GraphText, RejectsEveryTruncation) {
  const std::string text = without_keywords();
  for (std::size_t size = 0; size + 1 < text.size(); ++size) {
    EXPECT_ERROR(parse_graph(std::string_view(text).substr(0, size)), ParseError, "line ") << size;
  }
}

TEST(GraphPasses, RemovesUnusedNodes) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x,), {})
  %a = aten::relu(%x)
  %b = aten::relu(%a)
  %c = aten::dropout(%x, 0.5, True)
  %d = aten::mul_.Tensor(%x, 2)
  return %a
})");
  EXPECT_EQ(to_string(remove_dead_nodes(graph)), R"(graph {
  inputs ((%x,), {})
  %a = aten::relu(%x)
  _ = aten::dropout(%x, 0.5, True)
  _ = aten::mul_.Tensor(%x, 2)
  return %a
}
)");
}

TEST(GraphPasses, FollowsAliasesThroughViews) {
  const Graph graph = parse_graph(R"(graph {
  inputs ((%x,), {})
  %a = aten::relu(%x)
  %v = aten::view(%a, [-1])
  [%p, %q] = aten::chunk(%v, 2, 0)
  %r = aten::add_.Tensor(%p, 1, 1)
  %s = aten::add.Tensor(%r, %q, 1)
  return %s
})");
  const auto storage = [&](const std::string& name) -> std::int32_t {
    for (const Value& value : graph.values) {
      if (value.name == name) return value.storage.value_or(-1);
    }
    return -2;
  };
  for (const char* name : {"v", "p", "q", "r"}) EXPECT_EQ(storage(name), storage("a")) << name;
  EXPECT_NE(storage("x"), storage("a"));
  EXPECT_NE(storage("s"), storage("a"));
}

}  // namespace
}  // namespace penstock::graph
