// Follows each parameter from its slot to the operators that use it.
#include "parallel/graph/weights.h"

#include <map>
#include <optional>
#include <set>

namespace penstock::parallel {
namespace {

struct Matrix {
  std::size_t slot = 0;
  bool transposed = false;
};

//! Whether a node that only rearranges a matrix transposes it; empty for other nodes.
std::optional<bool> turns(const graph::Node& node, const std::string& name) {
  static const std::set<std::string> same = {"aten::to.dtype",
                                             "aten::to.dtype_layout",
                                             "aten::to.device",
                                             "aten::to.other",
                                             "aten::_to_copy",
                                             "aten::_autocast_to_reduced_precision",
                                             "aten::_autocast_to_full_precision",
                                             "aten::contiguous",
                                             "aten::detach",
                                             "aten::alias",
                                             "aten::type_as"};
  if (same.contains(name)) return false;
  if (name == "aten::t" || name == "aten::numpy_T" || name == "aten::mT") return true;
  const auto number = [&](std::size_t i) {
    const c10::IValue* constant = node.args[i].constant();
    return constant && constant->isInt() ? (constant->toInt() + 2) % 2 : -1;
  };
  if (name == "aten::transpose.int") return number(1) >= 0 && number(2) >= 0 && number(1) != number(2);
  if (name == "aten::permute") {
    const c10::IValue* order = node.args[1].constant();
    if (order && order->isIntList() && order->toIntVector() == std::vector<std::int64_t>{1, 0}) return true;
  }
  return std::nullopt;
}

struct WeightArgs {
  std::size_t weight, input;
  bool rows_are_outputs;  //!< of the weight as the operator receives it
  WeightUse::Kind kind;
};

std::optional<WeightArgs> weight_args_of(const std::string& name) {
  using Kind = WeightUse::Kind;
  if (name == "aten::linear") return WeightArgs{1, 0, true, Kind::Linear};
  if (name == "aten::matmul" || name == "aten::mm") return WeightArgs{1, 0, false, Kind::Linear};
  if (name == "aten::addmm") return WeightArgs{2, 1, false, Kind::Linear};
  if (name == "aten::embedding") return WeightArgs{0, 1, false, Kind::Table};
  return std::nullopt;
}

}  // namespace

std::vector<WeightUse> weight_uses(const graph::Graph& graph) {
  std::map<graph::ValueId, Matrix> matrices;
  for (std::size_t i = 0; i < graph.slots.size(); ++i) {
    const auto& meta = graph.value(graph.slots[i].value).meta;
    if (graph.slots[i].kind == graph::Slot::Kind::Parameter && meta && meta->sizes.size() == 2)
      matrices[graph.slots[i].value] = {i, false};
  }
  std::vector<WeightUse> uses;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const graph::Node& node = graph.nodes[i];
    if (node.kind != graph::Node::Kind::Op || node.args.empty() || node.results.empty()) continue;
    const auto read = [&](std::size_t arg) -> const Matrix* {
      const graph::ValueId* id = arg < node.args.size() ? node.args[arg].value() : nullptr;
      const auto it = id ? matrices.find(*id) : matrices.end();
      return it == matrices.end() ? nullptr : &it->second;
    };
    const std::string name = node.name();
    if (const Matrix* matrix = read(0)) {
      const std::optional<bool> turned = turns(node, name);
      if (turned && node.results[0].ids.size() == 1) {
        const Matrix made{matrix->slot, matrix->transposed != *turned};
        matrices[node.results[0].ids[0]] = made;
        continue;
      }
    }
    const std::optional<WeightArgs> args = weight_args_of(name);
    const Matrix* weight = args ? read(args->weight) : nullptr;
    const graph::ValueId* input = weight ? node.args[args->input].value() : nullptr;
    if (!input) continue;
    const std::int64_t out = args->rows_are_outputs == weight->transposed ? 1 : 0;
    uses.push_back({weight->slot, i, node.module, args->kind, out, 1 - out, *input, node.results[0].ids[0]});
  }
  return uses;
}

std::string parent_path(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

bool is_inside(const std::string& path, const std::string& module) {
  return module.empty() || path == module ||
         (path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.');
}

}  // namespace penstock::parallel
