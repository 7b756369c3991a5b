// Facts about operators on CUDA that their schema does not tell.
#include "operator_rules.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <set>
#include <string>

namespace penstock::test::simulated {
namespace {

// `aten::add_` and `aten::add` with any overload have the base name `aten::add`.
std::string base_name(const c10::OperatorName& name) {
  return name.name.ends_with('_') ? name.name.substr(0, name.name.size() - 1) : name.name;
}

// Elementwise operators, which take numbers as CPU tensors. libtorch tags only some of the overloads.
const std::set<std::string>& elementwise() {
  static const std::set<std::string> names = [] {
    std::set<std::string> found{"aten::fill", "aten::masked_fill", "aten::index_fill", "aten::index_put",
                                "aten::_index_put_impl"};
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findOp(name);
      if (op && op->hasSchema() && op->hasTag(at::Tag::pointwise)) found.insert(base_name(name));
    }
    return found;
  }();
  return names;
}

bool is_indexing(const std::string& base) {
  return base == "aten::index" || base == "aten::index_put" || base == "aten::_index_put_impl";
}

// Assignment by index converts masks to indices, and moves indices on the CPU to the device. Both block the
// host. A single mask that is set to one number is a `masked_fill`, which does not.
bool assignment_reads_values(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const auto arguments = torch::jit::last(stack, schema.arguments().size());
  bool blocks = false;
  std::size_t masks = 0, indices = 0;
  for (const std::optional<at::Tensor>& index : arguments[1].toOptionalTensorVector()) {
    if (!index || !index->defined()) continue;
    const bool is_mask = index->scalar_type() == at::kBool || index->scalar_type() == at::kByte;
    ++indices;
    masks += is_mask ? 1 : 0;
    blocks = blocks || is_mask || index->is_cpu();
  }
  const bool is_fill = masks == 1 && indices == 1 && arguments[2].toTensor().numel() == 1;
  return blocks && !is_fill;
}

}  // namespace

bool accepts_cpu_tensor(const c10::OperatorHandle& op, const c10::Argument& argument, bool scalar) {
  const std::string base = base_name(op.operator_name());
  if (is_indexing(base) && argument.name() == "indices") return true;
  return scalar && elementwise().contains(base);
}

bool reads_values_on_host(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::string base = base_name(op.operator_name());
  if (base == "aten::index") return false;  // libtorch has called `nonzero` or `copy_` before
  if (is_indexing(base)) return assignment_reads_values(op.schema(), stack);
  return op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
}

bool hides_generator(const c10::OperatorHandle& op) {
  // Accepts no dropout.
  if (op.operator_name().name == "aten::_scaled_dot_product_flash_attention_for_cpu") return false;
  const auto& arguments = op.schema().arguments();
  return op.hasTag(at::Tag::nondeterministic_seeded) &&
         std::none_of(arguments.begin(), arguments.end(),
                      [](const c10::Argument& argument) { return argument.name() == "generator"; });
}

}  // namespace penstock::test::simulated
