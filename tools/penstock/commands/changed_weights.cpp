// Renames and converts weights when they are read.
#include "commands/changed_weights.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/isinf.h>

#include <map>
#include <set>
#include <utility>

namespace penstock::tool {
namespace {

at::Tensor without_memory(const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  return at::empty(shape, at::TensorOptions(dtype).device(at::kMeta));
}

at::ScalarType scalar_type_of(WeightDtype dtype) {
  if (dtype == WeightDtype::Bfloat16) return at::kBFloat16;
  return dtype == WeightDtype::Float16 ? at::kHalf : at::kFloat;
}

at::Tensor converted(const at::Tensor& tensor, at::ScalarType dtype, const std::string& name) {
  if (!tensor.is_floating_point()) return tensor;
  at::Tensor result = tensor.to(dtype);
  if (!at::isinf(result).logical_and(at::isinf(tensor).logical_not()).any().item<bool>()) return result;
  throw UsageError("the tensor " + quote(name, 200) + " has numbers that are too large for this --dtype", {},
                   "use --dtype bf16 or float32");
}

// Applies the rules to one name, which must be new.
std::string changed_name(const std::string& name, const std::vector<checkpoint::RenameRule>& rules,
                         std::vector<int>& uses, std::set<std::string>& names) {
  std::string changed = checkpoint::renamed(name, rules, uses);
  if (changed.empty())
    throw UsageError("--rename removes the complete name " + quote(name, 200), {}, "give it a new name");
  if (!names.insert(changed).second)
    throw UsageError("--rename gives two tensors the name " + quote(changed, 200), {},
                     "make the rules more specific");
  return changed;
}

}  // namespace

std::vector<checkpoint::RenameRule> read_renames(const std::vector<std::string>& entries) {
  std::vector<checkpoint::RenameRule> rules;
  for (const std::string& entry : entries) {
    try {
      rules.push_back(checkpoint::parse_rename_rule(entry));
    } catch (const UsageError& error) {
      throw UsageError("--rename: " + error.message(), error.context(), error.hint());
    }
  }
  return rules;
}

checkpoint::ComputedWeights weights_of(const std::shared_ptr<const checkpoint::Checkpoint>& checkpoint) {
  checkpoint::ComputedWeights weights;
  weights.step = checkpoint->step();
  for (const checkpoint::StoredTensor& tensor : checkpoint->tensors()) {
    if (tensor.kind != checkpoint::PieceKind::Parameter && tensor.kind != checkpoint::PieceKind::Buffer)
      continue;
    weights.state.push_back(
        checkpoint::full_piece(tensor.name, without_memory(tensor.shape, tensor.dtype), tensor.kind));
    weights.state.back().aliases = tensor.aliases;
  }
  weights.read = [checkpoint](const std::string& name) { return checkpoint->read(name); };
  return weights;
}

checkpoint::ComputedWeights with_names(const checkpoint::ComputedWeights& weights,
                                       const std::vector<checkpoint::RenameRule>& rules) {
  checkpoint::ComputedWeights changed = weights;
  std::map<std::string, std::string> origins;  // by the new name of a piece
  std::vector<int> uses(rules.size(), 0);
  std::set<std::string> names;
  for (checkpoint::Piece& piece : changed.state) {
    const std::string name = std::exchange(piece.name, changed_name(piece.name, rules, uses, names));
    origins[piece.name] = name;
    for (std::string& alias : piece.aliases) alias = changed_name(alias, rules, uses, names);
  }
  for (std::size_t i = 0; i < rules.size(); ++i)
    if (uses[i] == 0)
      throw UsageError(
          "no tensor matches the rule " + quote(rules[i].from + "=" + rules[i].to, 200) + " of --rename", {},
          "rules apply in order, each to the names that the previous ones made");
  changed.read = [read = weights.read, origins](const std::string& name) { return read(origins.at(name)); };
  return changed;
}

checkpoint::ComputedWeights with_dtype(const checkpoint::ComputedWeights& weights, WeightDtype dtype) {
  if (dtype == WeightDtype::Stored) return weights;
  const at::ScalarType type = scalar_type_of(dtype);
  checkpoint::ComputedWeights changed = weights;
  for (checkpoint::Piece& piece : changed.state)
    if (piece.local.is_floating_point()) piece.local = without_memory(piece.shape, type);
  changed.read = [read = weights.read, type](const std::string& name) {
    return converted(read(name), type, name);
  };
  return changed;
}

}  // namespace penstock::tool
