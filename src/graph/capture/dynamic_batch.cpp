// Captures with a dynamic batch: captures the forward pass with three numbers of rows. Every integer that
// differs between the graphs becomes slope * batch + offset, solved from two captures and checked with the
// third.
#include "base/text.h"
#include "graph/passes/passes.h"

#include <penstock/base/error.h>
#include <penstock/graph/capture.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/remainder.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <map>

namespace penstock::graph {
namespace {

using c10::IValue;

constexpr std::size_t kCaptureRuns = 3;
constexpr const char* kBatchSymbol = "batch";

struct Line {
  std::int64_t slope = 0, offset = 0;
  friend auto operator<=>(const Line&, const Line&) = default;

  std::string text() const {
    std::string result = slope == 1 ? kBatchSymbol : str_cat(slope, "*", kBatchSymbol);
    if (offset != 0) result += str_cat((offset > 0 ? " + " : " - "), std::abs(offset));
    return result;
  }
};

using Numbers = std::array<std::int64_t, kCaptureRuns>;

std::optional<std::int64_t> rows_of(const std::vector<IValue>& leaves) {
  for (const IValue& leaf : leaves) {
    if (leaf.isTensor() && leaf.toTensor().defined() && leaf.toTensor().dim() > 0)
      return leaf.toTensor().size(0);
  }
  return std::nullopt;
}

//! Changes the number of rows of a leaf if its dim 0 is the batch.
IValue with_rows(const IValue& leaf, std::int64_t from, std::int64_t to) {
  if (!leaf.isTensor() || !leaf.toTensor().defined() || leaf.toTensor().dim() == 0) return leaf;
  const at::Tensor& tensor = leaf.toTensor();
  if (tensor.size(0) != from) return leaf;
  const at::Tensor indices =
      at::remainder(at::arange(to, at::device(tensor.device()).dtype(at::kLong)), from);
  return at::index_select(tensor.detach(), 0, indices).set_requires_grad(tensor.requires_grad());
}

bool same_constant(const IValue& a, const IValue& b) {
  if (a.isTensor() || b.isTensor()) return value::leaves_equal(a, b);
  return a.tagKind() == b.tagKind() && a == b;
}

class Solver {
 public:
  Solver(std::array<Captured, kCaptureRuns> captures, const Numbers& batches)
      : captures_(std::move(captures)), batches_(batches), result_(captures_[0]) {}

  Captured solve() {
    const auto count = [&](std::size_t run) { return captures_[run].graph.nodes.size(); };
    if (count(1) != count(0) || count(2) != count(0)) fail("it runs different operators", nullptr);
    compare_tensors();
    for (std::size_t i = 0; i < graph().values.size(); ++i) solve_sizes(i);
    for (std::size_t n = 0; n < graph().nodes.size(); ++n) solve_node(n);
    for (std::size_t i = 0; i < graph().outputs.size(); ++i) {
      const auto& [a, b, c] = captures_;
      graph().outputs[i] =
          solve_arg({&a.graph.outputs[i], &b.graph.outputs[i], &c.graph.outputs[i]}, nullptr);
    }
    graph().nodes.insert(graph().nodes.begin(), new_nodes_.begin(), new_nodes_.end());
    graph().symbols.push_back({kBatchSymbol, 1, std::nullopt});
    check_graph(graph());
    return std::move(result_);
  }

 private:
  Graph& graph() { return result_.graph; }

  [[noreturn]] void fail(const std::string& what, const Node* node) const {
    ErrorContext context;
    if (node) context.op = node->name() + (node->module.empty() ? "" : " of module " + node->module);
    throw UsageError(
        "the forward pass depends on the number of rows in a way that a graph cannot express: " + what,
        context, "capture it without dynamic_batch and pass microbatches of the example's size");
  }

  std::optional<Line> fit(const Numbers& numbers) const {
    const std::int64_t rise = numbers[1] - numbers[0], run = batches_[1] - batches_[0];
    if (rise % run != 0) return std::nullopt;
    const Line line{rise / run, numbers[0] - rise / run * batches_[0]};
    if (line.slope * batches_[2] + line.offset != numbers[2]) return std::nullopt;
    return line;
  }

  void compare_tensors() {
    for (std::size_t run = 1; run < kCaptureRuns; ++run) {
      const Captured& other = captures_[run];
      bool same = other.tensors.size() == result_.tensors.size() &&
                  other.graph.values.size() == graph().values.size() &&
                  other.graph.outputs.size() == graph().outputs.size();
      for (std::size_t i = 0; same && i < other.tensors.size(); ++i) {
        if (graph().slots[i].kind != Slot::Kind::Constant) continue;
        const at::Tensor &a = result_.tensors[i], &b = other.tensors[i];
        same = a.sizes() == b.sizes() && (a.is_meta() || at::equal(a, b));
      }
      if (!same) fail("a tensor built from host data, or the output structure, changes", nullptr);
    }
  }

  void solve_sizes(std::size_t value) {
    auto& meta = graph().values[value].meta;
    if (!meta) return;
    std::array<const ValueMeta*, kCaptureRuns> metas{};
    for (std::size_t run = 0; run < kCaptureRuns; ++run) {
      const auto& other = captures_[run].graph.values[value].meta;
      if (!other || other->sizes.size() != meta->sizes.size()) return;
      metas[run] = &*other;
    }
    for (std::size_t d = 0; d < meta->sizes.size(); ++d) {
      const Numbers sizes{metas[0]->sizes[d].size, metas[1]->sizes[d].size, metas[2]->sizes[d].size};
      if (sizes[0] == sizes[1] && sizes[0] == sizes[2]) continue;
      const auto line = fit(sizes);
      // A size that is not linear, for example a power of the batch, gets an opaque name.
      meta->sizes[d].expression = line ? line->text() : str_cat("size", value, "_", d);
    }
  }

  void solve_node(std::size_t n) {
    Node& node = graph().nodes[n];
    for (std::size_t run = 1; run < kCaptureRuns; ++run) {
      const Node& other = captures_[run].graph.nodes[n];
      bool same =
          other.kind == node.kind && other.op == node.op && other.results.size() == node.results.size();
      for (std::size_t r = 0; same && r < node.results.size(); ++r)
        same = other.results[r].ids == node.results[r].ids;
      if (!same) fail("it runs " + other.name() + " for a different number of rows", &node);
    }
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      std::array<const Arg*, kCaptureRuns> args{};
      for (std::size_t run = 0; run < kCaptureRuns; ++run) args[run] = &captures_[run].graph.nodes[n].args[i];
      node.args[i] = solve_arg(args, &node);
    }
  }

  Arg solve_arg(const std::array<const Arg*, kCaptureRuns>& args, const Node* node) {
    for (const Arg* arg : args) {
      if (arg->is.index() != args[0]->is.index()) fail("the type of an argument changes", node);
    }
    if (const ValueId* id = args[0]->value()) {
      if (*args[1]->value() != *id || *args[2]->value() != *id)
        fail("values are created in a different order", node);
      return {*id};
    }
    if (const IValue* constant = args[0]->constant())
      return solve_constant({constant, args[1]->constant(), args[2]->constant()}, node);
    std::vector<Arg> items;
    for (std::size_t i = 0; i < args[0]->list()->size(); ++i) {
      if (args[1]->list()->size() != args[0]->list()->size() ||
          args[2]->list()->size() != args[0]->list()->size())
        fail("a list changes its length", node);
      items.push_back(
          solve_arg({&(*args[0]->list())[i], &(*args[1]->list())[i], &(*args[2]->list())[i]}, node));
    }
    return {std::move(items)};
  }

  Arg solve_constant(const std::array<const IValue*, kCaptureRuns>& constants, const Node* node) {
    const auto& [a, b, c] = constants;
    if (same_constant(*a, *b) && same_constant(*a, *c)) return {*a};
    if (a->isInt() && b->isInt() && c->isInt()) {
      const auto line = fit({a->toInt(), b->toInt(), c->toInt()});
      if (!line) fail("an integer argument is not a linear function of the batch size", node);
      return {number(*line)};
    }
    if (a->isIntList() && b->isIntList() && c->isIntList()) {
      const auto x = a->toIntVector(), y = b->toIntVector(), z = c->toIntVector();
      if (x.size() != y.size() || x.size() != z.size()) fail("a list changes its length", node);
      std::vector<Arg> items;
      bool constant = true;
      for (std::size_t i = 0; i < x.size(); ++i) {
        items.push_back(solve_constant(
            {&ints_.emplace_back(x[i]), &ints_.emplace_back(y[i]), &ints_.emplace_back(z[i])}, node));
        constant = constant && items.back().constant();
      }
      return constant ? Arg{*a} : Arg{std::move(items)};
    }
    fail("an argument that is not an integer changes", node);
  }

  //! Returns the value slope * batch + offset, which is computed before all other nodes.
  ValueId number(const Line& line) {
    const auto known = numbers_.find(line);
    if (known != numbers_.end()) return known->second;
    const auto add = [&](Node node, const Line& is) {
      const ValueId id = graph().add_value({.name = str_cat("batch_", new_nodes_.size()),
                                            .type = ValueType::Int,
                                            .meta = std::nullopt,
                                            .expression = is.text()});
      node.results = {{.ids = {id}}};
      new_nodes_.push_back(std::move(node));
      return id;
    };
    if (line == Line{1, 0}) {
      return numbers_[line] = add(
                 {.op = find_operator("aten::sym_size.int"), .args = {{batch_input()}, {IValue(0)}}}, line);
    }
    ValueId id = number({1, 0});
    if (line.slope != 1)
      id = add({.kind = Node::Kind::Scalar, .scalar = ScalarOp::Mul, .args = {{id}, {IValue(line.slope)}}},
               {line.slope, 0});
    if (line.offset != 0)
      id = add({.kind = Node::Kind::Scalar, .scalar = ScalarOp::Add, .args = {{id}, {IValue(line.offset)}}},
               line);
    return numbers_[line] = id;
  }

  ValueId batch_input() const {
    for (const GraphInput& input : result_.graph.inputs) {
      const auto& meta = result_.graph.value(input.value).meta;
      if (!input.constant && meta && !meta->sizes.empty()) return input.value;
    }
    return kUnusedValue;
  }

  std::array<Captured, kCaptureRuns> captures_;
  Numbers batches_;
  Captured result_;
  std::map<Line, ValueId> numbers_;
  std::vector<Node> new_nodes_;
  std::deque<IValue> ints_;
};

}  // namespace

Captured capture_dynamic(const ForwardFunction& forward, const ModelTensors& model, const value::Args& args,
                         const value::Kwargs& kwargs) {
  c10::impl::GenericDict named(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, value] : kwargs) named.insert(name, value);
  const IValue tree = c10::ivalue::Tuple::create({c10::ivalue::Tuple::create(args), named});
  const auto rows = rows_of(value::flatten(tree).leaves);
  if (!rows || *rows == 0) throw UsageError("dynamic_batch needs a tensor argument whose dim 0 is the batch");
  const Numbers batches{*rows, *rows + 1, *rows + 3};
  std::array<Captured, kCaptureRuns> captures;
  for (std::size_t run = 0; run < kCaptureRuns; ++run) {
    const IValue changed =
        value::map_leaves(tree, [&](const IValue& leaf) { return with_rows(leaf, *rows, batches[run]); });
    const auto& parts = changed.toTupleRef().elements();
    value::Kwargs by_name;
    for (const auto& entry : parts[1].toGenericDict())
      by_name.emplace(entry.key().toStringRef(), entry.value());
    captures[run] = capture(forward, model, parts[0].toTupleRef().elements().vec(), by_name);
  }
  return Solver(std::move(captures), batches).solve();
}

}  // namespace penstock::graph
