// Compares the inputs of a step with those of the first step.
#include "runtime/setup/first_inputs.h"

#include "base/text.h"
#include "runtime/setup/signature.h"
#include "value/kind_name.h"

#include <penstock/base/error.h>
#include <penstock/tensor/dtensor.h>
#include <penstock/value/tensor_meta.h>

#include <algorithm>
#include <sstream>

namespace penstock::runtime {
namespace {

std::string value_text(const c10::IValue& value) {
  if (!value.isInt() && !value.isDouble() && !value.isBool() && !value.isString())
    return value::kind_name(value);
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

FirstInputs::Leaf FirstInputs::leaf_of(std::string path, const c10::IValue& value) {
  Leaf leaf{.path = std::move(path)};
  leaf.tensor = value.isTensor() && value.toTensor().defined();
  if (!leaf.tensor) {
    leaf.value = Signature().add(value).value();
    leaf.text = value_text(value);
    return leaf;
  }
  const at::Tensor& tensor = value.toTensor();
  leaf.shape = tensor.sizes().vec();
  leaf.dtype = tensor.scalar_type();
  if (tensor::is_dtensor(tensor))
    leaf.layout = to_string(tensor::mesh_of(tensor)) + " " + to_string(tensor::placements_of(tensor));
  leaf.requires_grad = tensor.requires_grad();
  leaf.text = value::dtype_name(leaf.dtype) + format_shape(leaf.shape);
  return leaf;
}

FirstInputs::Leaves FirstInputs::leaves_of(const StepBatch& batch, std::size_t microbatch) {
  Leaves leaves;
  const auto add = [&](const c10::IValue& tree, const std::string& root) {
    const value::FlatTree flat = value::flatten(tree);
    const std::vector<std::string> paths = flat.structure.paths(root);
    for (std::size_t i = 0; i < paths.size(); ++i) leaves.push_back(leaf_of(paths[i], flat.leaves[i]));
  };
  if (!batch.args.empty()) add(c10::ivalue::Tuple::create(batch.args[microbatch]), "args");
  for (std::size_t stage = 0; stage < batch.kwargs.size(); ++stage) {
    if (batch.kwargs[stage].empty()) continue;
    for (const auto& [name, value] : batch.kwargs[stage][microbatch])
      add(value, str_cat("kwargs.", name, " of stage ", stage));
  }
  return leaves;
}

std::vector<std::string> FirstInputs::differences(const Leaf& first, const Leaf& now, Changes& changes) {
  if (!first.tensor || !now.tensor) {
    if (first.tensor == now.tensor && first.value == now.value) return {};
    return {"is " + now.text + ", expected " + first.text};
  }
  std::vector<std::string> parts;
  if (now.shape != first.shape)
    parts.push_back("has shape " + format_shape(now.shape) + ", expected " + format_shape(first.shape));
  if (now.dtype != first.dtype) {
    parts.push_back("has dtype " + value::dtype_name(now.dtype) + ", expected " +
                    value::dtype_name(first.dtype));
    changes.dtype = true;
  }
  if (now.layout != first.layout) {
    const auto text = [](const Leaf& leaf) { return leaf.layout.empty() ? "not distributed" : leaf.layout; };
    parts.push_back("is " + text(now) + ", expected " + text(first));
    changes.layout = true;
  }
  if (now.requires_grad != first.requires_grad) {
    parts.emplace_back(now.requires_grad ? "requires a gradient, expected none"
                                         : "requires no gradient, expected one");
    changes.requires_grad = true;
  }
  return parts;
}

void FirstInputs::keep(const StepBatch& batch, std::size_t microbatches) {
  if (!microbatches_.empty()) return;
  for (std::size_t m = 0; m < microbatches; ++m) microbatches_.push_back(leaves_of(batch, m));
}

FirstInputs::Changes FirstInputs::changes(const StepBatch& batch) const {
  Changes changes;
  // Most changes affect many microbatches: list each change once, with all of its microbatches.
  std::vector<std::pair<std::string, std::vector<std::size_t>>> found;
  const auto add = [&](std::string text, std::size_t m) {
    const auto same =
        std::find_if(found.begin(), found.end(), [&](const auto& f) { return f.first == text; });
    if (same != found.end()) return same->second.push_back(m);
    found.emplace_back(std::move(text), std::vector<std::size_t>{m});
  };
  for (std::size_t m = 0; m < microbatches_.size(); ++m) {
    const Leaves now = leaves_of(batch, m);
    const auto named = [](const Leaves& leaves, const std::string& path) {
      return std::find_if(leaves.begin(), leaves.end(), [&](const Leaf& leaf) { return leaf.path == path; });
    };
    for (const Leaf& leaf : now) {
      const auto first = named(microbatches_[m], leaf.path);
      if (first == microbatches_[m].end()) {
        add(leaf.path + " is new", m);
        continue;
      }
      const std::vector<std::string> parts = differences(*first, leaf, changes);
      if (!parts.empty()) add(leaf.path + " " + join(parts, " and "), m);
    }
    for (const Leaf& leaf : microbatches_[m]) {
      if (named(now, leaf.path) == now.end()) add(leaf.path + " is missing", m);
    }
  }
  std::vector<std::string> texts;
  for (const auto& [text, microbatches] : found)
    texts.push_back(text + " (" + numbered("microbatch", microbatches) + ")");
  changes.text = join(texts, "; ");
  return changes;
}

namespace {

ShapeError change_error(const std::string& changes, const ErrorContext& context, bool dtype, bool layout,
                        bool requires_grad) {
  std::string hint = "use ShapeMode::Inferred, which allows other shapes";
  if (requires_grad) hint = "detach the inputs, or let them require a gradient, as in the first step";
  if (layout) hint = "redistribute the inputs to the placements of the first step";
  if (dtype) hint = "cast the inputs to the dtypes of the first step";
  if (dtype || layout || requires_grad) hint += "; ShapeMode::Inferred allows any change";
  return ShapeError(
      "the inputs changed after the first step, and this pipeline's shapes are static: " + changes, context,
      hint);
}

}  // namespace

ShapeError FirstInputs::local_error(const PipelineSetup& setup, const StepBatch& batch) const {
  const Changes local = changes(batch);
  const std::string text = local.text.empty() ? "the rows of the batch" : local.text;
  return change_error(str_cat("inputs of rank ", setup.group.global_rank(setup.rank.value).value, ": ", text),
                      {}, local.dtype, local.layout, local.requires_grad);
}

ShapeError FirstInputs::error(const PipelineSetup& setup, const StepBatch& batch,
                              MicrobatchId microbatch) const {
  const Changes local = changes(batch);
  const auto reports = setup.group.all_gather_object(
      c10::ivalue::Tuple::create({c10::IValue(local.text), local.dtype, local.layout, local.requires_grad}));
  std::vector<std::string> texts;
  bool dtype = false, layout = false, requires_grad = false;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const auto& facts = reports[rank].toTupleRef().elements();
    if (facts[0].toStringRef().empty()) continue;
    texts.push_back(str_cat("inputs of rank ", setup.group.global_rank(static_cast<int>(rank)).value, ": ",
                            facts[0].toStringRef()));
    dtype = dtype || facts[1].toBool();
    layout = layout || facts[2].toBool();
    requires_grad = requires_grad || facts[3].toBool();
  }
  return change_error(join(texts, "; "), {.microbatch = microbatch}, dtype, layout, requires_grad);
}

}  // namespace penstock::runtime
