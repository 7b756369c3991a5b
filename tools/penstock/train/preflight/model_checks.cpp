// Checks exported models and their data.
#include "train/preflight/model_checks.h"

#include "base/number_text.h"
#include "base/text.h"
#include "cli/paths.h"
#include "graph/passes/passes.h"

#include <penstock/value/tensor_meta.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <set>

namespace penstock::tool {
namespace {

constexpr std::int64_t kIgnored = -100;  // labels that cross_entropy ignores

std::string on_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const bool space = c == '\n' || c == ' ';
    if (!space) line += c;
    if (space && !line.empty() && line.back() != ' ') line += ' ';
  }
  return line;
}

struct Range {
  std::int64_t least = 0, greatest = 0;
};

//! Minimum and maximum of all values except `ignored`, or nullopt if there are none.
std::optional<Range> range_of(const at::Tensor& integers, std::optional<std::int64_t> ignored = {}) {
  const at::Tensor all = integers.to(at::kLong).flatten();
  const at::Tensor values = ignored ? all.masked_select(all != *ignored) : all;
  if (values.numel() == 0) return std::nullopt;
  return Range{values.min().item<std::int64_t>(), values.max().item<std::int64_t>()};
}

Range range_of_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return {0, std::numeric_limits<std::uint8_t>::max()};
    case at::kChar:
      return {std::numeric_limits<std::int8_t>::min(), std::numeric_limits<std::int8_t>::max()};
    case at::kShort:
      return {std::numeric_limits<std::int16_t>::min(), std::numeric_limits<std::int16_t>::max()};
    case at::kInt:
      return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
    default:
      return {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  }
}

//! Whether the operator returns the elements of its first argument unchanged.
bool keeps_elements(const graph::Node& node) {
  static const std::set<std::string> names{"aten::to",     "aten::_to_copy", "aten::alias",
                                           "aten::detach", "aten::clone",    "aten::contiguous",
                                           "aten::view",   "aten::reshape",  "aten::unsqueeze"};
  const std::string name = node.name();
  return names.contains(name.substr(0, name.find('.')));
}

void check_classes(const at::Tensor& target, std::int64_t classes) {
  const auto range = range_of(target, kIgnored);
  if (!range || (range->least >= 0 && range->greatest < classes)) return;
  const std::int64_t wrong = range->least < 0 ? range->least : range->greatest;
  throw UsageError(
      str_cat("'target' contains class ", wrong, ", but the model's output has ", classes, " classes (0 to ",
              classes - 1, ")"),
      {},
      "number the classes from 0, mark labels to ignore with -100, or export the model with more classes");
}

// The shape of the examples of a model: `float32[n, 3, 8, 8]`.
std::string example_shape(const graph::ValueMeta& meta) {
  std::vector<std::string> sizes;
  for (const graph::Dim& dim : meta.sizes)
    sizes.push_back(sizes.empty() ? "n" : dim.expression.empty() ? std::to_string(dim.size) : dim.expression);
  return value::dtype_name(meta.dtype) + "[" + join(sizes, ", ") + "]";
}

bool fits(const graph::Dim& dim, std::int64_t size) {
  return !dim.expression.empty() || dim.size == size;
}

// Images with the channels in the last dim instead of the first, or the other way round.
std::string permutation_hint(const at::Tensor& tensor, const std::vector<graph::Dim>& sizes) {
  const std::int64_t dims = tensor.dim();
  if (dims < 3 || dims != static_cast<std::int64_t>(sizes.size())) return "";
  for (const bool to_first : {true, false}) {
    std::vector<std::int64_t> order{0};
    for (std::int64_t i = 1; i < dims; ++i)
      order.push_back(to_first ? (i == 1 ? dims - 1 : i - 1) : (i == dims - 1 ? 1 : i + 1));
    bool all_fit = true;
    for (std::size_t i = 1; i < order.size(); ++i) all_fit &= fits(sizes[i], tensor.size(order[i]));
    if (all_fit) return " with tensor.permute(" + join(order, ", ") + ").contiguous()";
  }
  return "";
}

// Whether the node is a batch norm that normalizes with the statistics of its input.
bool is_training_norm(const graph::Node& node) {
  static const std::map<std::string, std::size_t> training_argument{
      {"aten::batch_norm", 5},
      {"aten::native_batch_norm", 5},
      {"aten::_native_batch_norm_legit", 5},
      {"aten::_native_batch_norm_legit_functional", 5},
      {"aten::_native_batch_norm_legit.no_stats", 3}};
  const auto found =
      node.kind == graph::Node::Kind::Op ? training_argument.find(node.name()) : training_argument.end();
  if (found == training_argument.end() || found->second >= node.args.size()) return false;
  const c10::IValue* const training = node.args[found->second].constant();
  return training != nullptr && training->isBool() && training->toBool();
}

std::string archive_hint(const std::string& model) {
  return quote(model, 200) +
         " must be an archive written by torch.export.save(torch.export.export(model, args), path)";
}

}  // namespace

bool is_integer(at::ScalarType dtype) {
  return at::isIntegralType(dtype, /*includeBool=*/false);
}

void throw_as_usage(const std::exception& error, const std::string& hint) {
  if (const auto* known = dynamic_cast<const Error*>(&error))
    throw UsageError(on_one_line(known->message()), known->context(), hint.empty() ? known->hint() : hint);
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  throw UsageError(on_one_line(torch ? torch->what_without_backtrace() : error.what()), {}, hint);
}

graph::Pt2Archive open_archive(const std::string& model) {
  check_input_file(model, ".pt2");
  return as_usage([&] { return graph::Pt2Archive(model); }, archive_hint(model));
}

train::ArchiveModel open_model(const train::ArchiveOptions& options) {
  const std::string model = options.file.string();
  check_input_file(model, ".pt2");
  return as_usage([&] { return train::archive_model(options); }, archive_hint(model));
}

at::Tensor with_dtype(const at::Tensor& tensor, at::ScalarType wanted, const std::string& name) {
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype == wanted) return tensor;
  const std::string what = "the tensor " + quote(name) + " is " + value::dtype_name(dtype) + ", expected " +
                           value::dtype_name(wanted);
  if (!is_integer(dtype) || !is_integer(wanted))
    throw UsageError(
        what, {},
        "save it as " + value::dtype_name(wanted) + ": tensor.to(torch." + value::dtype_name(wanted) + ")");
  const Range room = range_of_dtype(wanted);
  const auto range = range_of(tensor);
  if (range && (range->least < room.least || range->greatest > room.greatest))
    throw UsageError(
        str_cat(what, ", which cannot represent its values (", range->least, " to ", range->greatest, ")"),
        {}, "export the model with a wider dtype");
  return tensor.to(wanted);
}

void check_tokens(const graph::Graph& graph, const std::vector<c10::IValue>& leaves) {
  std::map<std::int64_t, std::size_t> input_of;  // from values with the elements of an input to that input
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) input_of[graph.inputs[i].value.value] = i;
  for (const graph::Node& node : graph.nodes) {
    if (node.kind != graph::Node::Kind::Op || node.args.empty()) continue;
    if (keeps_elements(node) && node.args[0].value() && !node.results.empty() &&
        !node.results[0].ids.empty()) {
      const auto from = input_of.find(node.args[0].value()->value);
      if (from != input_of.end()) input_of.emplace(node.results[0].ids[0].value, from->second);
    }
    if (node.name() != "aten::embedding" || !node.args[0].value() || !node.args[1].value()) continue;
    const auto read = input_of.find(node.args[1].value()->value);
    const auto& table = graph.value(*node.args[0].value()).meta;
    if (read == input_of.end() || !table || !leaves[read->second].isTensor()) continue;
    const at::Tensor& tokens = leaves[read->second].toTensor();
    const auto range = is_integer(tokens.scalar_type()) ? range_of(tokens) : std::nullopt;
    const std::int64_t rows = table->sizes.at(0).size;
    if (!range || (range->least >= 0 && range->greatest < rows)) continue;
    const std::int64_t wrong = range->least < 0 ? range->least : range->greatest;
    const std::string name = graph.value(graph.inputs[read->second].value).name;
    throw UsageError(str_cat("the tensor ", quote(name), " contains ", wrong, ", but the embedding ",
                             quote(node.module, 200), " has ", rows, " rows (0 to ", rows - 1, ")"),
                     {}, "keep the indices in that range, or export the model with a larger embedding");
  }
}

void check_example_shapes(const graph::Graph& graph, const std::vector<c10::IValue>& leaves,
                          const std::string& path) {
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const graph::Value& input = graph.value(graph.inputs[i].value);
    if (graph.inputs[i].constant || !leaves[i].isTensor() || !input.meta) continue;
    const at::Tensor& tensor = leaves[i].toTensor();
    const std::vector<graph::Dim>& sizes = input.meta->sizes;
    std::vector<std::string> faults;
    if (tensor.dim() != static_cast<std::int64_t>(sizes.size())) {
      faults.push_back(
          str_cat(quote(input.name), " has ", tensor.dim(), " dims, the model expects ", sizes.size()));
    }
    for (std::size_t d = 1; faults.empty() && d < sizes.size(); ++d) {
      const std::int64_t size = tensor.size(static_cast<std::int64_t>(d));
      if (!fits(sizes[d], size))
        faults.push_back(str_cat("dim ", d, " of ", quote(input.name), " is ", size, ", the model expects ",
                                 sizes[d].size));
    }
    if (faults.empty()) continue;
    throw UsageError(
        join(faults, "; "), {},
        str_cat(quote(input.name), " is ", value::dtype_name(tensor.scalar_type()),
                format_shape(tensor.sizes()), " in ", quote(path, 200), ", but the model takes ",
                example_shape(*input.meta), " for n examples: store it in that shape",
                permutation_hint(tensor, sizes), ", or export the model for the shape of the data"));
  }
}

void check_batch_norms(const graph::Graph& sized) {
  for (const graph::Node& node : sized.nodes) {
    if (!is_training_norm(node) || !node.args[0].value()) continue;
    const auto& input = sized.value(*node.args[0].value()).meta;
    if (!input || input->sizes.size() < 2 || input->numel() != input->sizes[1].size) continue;
    throw UsageError("the batch norm " + quote(node.module, 200) +
                         " needs more than one value per channel, but the smallest microbatch has one row",
                     {}, "use fewer microbatches (--microbatches) or a larger batch (--batch)");
  }
}

std::optional<graph::Graph> sized_graph(const graph::Graph& graph, const std::vector<c10::IValue>& leaves) {
  std::vector<graph::ValueMeta> inputs;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    graph::ValueMeta meta = graph.value(graph.inputs[i].value).meta.value_or(graph::ValueMeta{});
    if (leaves[i].isTensor()) {
      meta.dtype = leaves[i].toTensor().scalar_type();
      meta.sizes.clear();
      for (const std::int64_t size : leaves[i].toTensor().sizes()) meta.sizes.push_back({size, ""});
    }
    inputs.push_back(std::move(meta));
  }
  try {
    return propagate_shapes(graph, inputs);
  } catch (const std::exception&) {  // data-dependent sizes: only the run can check them
    return std::nullopt;
  }
}

std::vector<std::optional<graph::ValueMeta>> output_sizes(const graph::Graph& graph,
                                                          const std::vector<c10::IValue>& leaves) {
  std::vector<std::optional<graph::ValueMeta>> sizes(graph.outputs.size());
  const std::optional<graph::Graph> sized = sized_graph(graph, leaves);
  for (std::size_t i = 0; sized && i < sized->outputs.size(); ++i)
    if (const graph::ValueId* id = sized->outputs[i].value()) sizes[i] = sized->value(*id).meta;
  return sizes;
}

at::ScalarType target_dtype(const train::ArchiveModel& model, train::LossKind loss, at::ScalarType stored) {
  const bool has_double = std::any_of(model.dtypes.begin(), model.dtypes.end(),
                                      [](const auto& item) { return item.second == at::kDouble; });
  if (loss != train::LossKind::CrossEntropy && !has_double) return at::kFloat;
  if (loss == train::LossKind::CrossEntropy && is_integer(stored)) return at::kLong;
  return stored;
}

void check_target(const at::Tensor& target, std::int64_t rows, const graph::ValueMeta& output,
                  train::LossKind loss, std::optional<std::int64_t> class_dim) {
  std::vector<std::int64_t> sizes;
  for (const graph::Dim& dim : output.sizes) sizes.push_back(dim.size);
  std::vector<std::int64_t> shape = target.sizes().vec();
  shape[0] = rows;
  const std::string given = "'target' is " + value::dtype_name(target.scalar_type()) + format_shape(shape) +
                            " for a microbatch, but the output is " + value::dtype_name(output.dtype) +
                            format_shape(sizes);
  if (!at::isFloatingType(output.dtype))
    throw UsageError(given + ", which is not a floating-point dtype", {},
                     "choose another output with --loss-output");
  if (loss != train::LossKind::CrossEntropy) {
    if (shape != sizes)
      throw UsageError(
          given, {},
          str_cat("with --loss ", to_string(loss), ", store the target in the shape of the output"));
    return;
  }
  if (at::isFloatingType(target.scalar_type()) && sizes.size() > 1 && shape == sizes) return;  // soft targets
  if (!is_integer(target.scalar_type()))
    throw UsageError(
        given + "; cross_entropy needs class indices", {},
        "store target.long() (int64), or probabilities in the shape of the output, or train with "
        "--loss mse");
  if (sizes.size() < 2)
    throw UsageError(given + ", which has no class dim", {},
                     "choose another output with --loss-output, or use --loss mse");
  const auto without = [&](std::size_t dim) {
    std::vector<std::int64_t> labels = sizes;
    labels.erase(labels.begin() + static_cast<std::ptrdiff_t>(dim));
    return labels;
  };
  const std::size_t classes =
      class_dim ? std::min(static_cast<std::size_t>(*class_dim), sizes.size() - 1) : sizes.size() - 1;
  const std::vector<std::int64_t> labels = without(classes);
  if (c10::multiply_integers(shape) != c10::multiply_integers(labels)) {
    const bool images = !class_dim && sizes.size() > 2 && shape == without(1);
    throw UsageError(given, {},
                     images ? std::string("if dim 1 of the output has the classes, use --class-dim 1")
                            : "store one class index per row of logits, " + format_shape(labels) +
                                  " for this output, or choose another with --loss-output");
  }
  check_classes(target, sizes[classes]);
}

void check_probabilities(const at::Tensor& target, train::LossKind loss,
                         std::optional<std::int64_t> class_dim) {
  const auto rounded = [](const at::Tensor& numbers) {
    std::string text;
    append_rounded(text, numbers[0].item<double>(), 6);
    return text;
  };
  const bool classes = loss == train::LossKind::CrossEntropy && at::isFloatingType(target.scalar_type());
  if ((!classes && loss != train::LossKind::Bce) || target.numel() == 0) return;
  const at::Tensor values = target.to(at::kDouble);
  const std::string use = str_cat("store numbers from 0 to 1", classes ? " that add up to 1" : "",
                                  ", or train with --loss mse", classes ? ", or --loss bce" : "");
  const at::Tensor outside = values.masked_select((values >= 0).logical_and(values <= 1).logical_not());
  if (outside.numel() > 0)
    throw UsageError("'target' contains " + rounded(outside) + ", but --loss " +
                         std::string(to_string(loss)) + " takes probabilities" +
                         (classes ? " if the target has the shape of the output" : ""),
                     {}, use);
  if (!classes) return;
  // Rounding to 16 bits changes a sum by up to this.
  const double tolerance = c10::elementSize(target.scalar_type()) < sizeof(float) ? 1e-2 : 1e-3;
  const at::Tensor sums = values.sum(at::IntArrayRef{class_dim.value_or(-1)}, /*keepdim=*/false).flatten();
  const at::Tensor wrong = sums.masked_select((sums - 1).abs() > tolerance);
  if (wrong.numel() > 0)
    throw UsageError("'target' has a row of probabilities whose sum is " + rounded(wrong) +
                         ", but --loss cross_entropy needs a sum of 1",
                     {}, use + " for several labels per row");
}

}  // namespace penstock::tool
