// Operators on distributed tensors compared with torch.distributed.tensor: the calls in goldens.txt, written
// by make_goldens.py, on thread ranks. Values and gradients must be equal (exactly for integers), and so must
// every local shard after redistribution to the reference's placements. The placements of a result may differ
// between the two libraries: differences are counted.
#include "tensor/goldens.h"

#include "support/mesh_ranks.h"
#include "support/program.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <stdexcept>

namespace penstock::test {
namespace {

using GoldenShape = std::vector<std::int64_t>;

// The local shard of this rank, sharded axis by axis like `chunk`; partial values sum to the full tensor.
// Implemented without the library's placement arithmetic.
at::Tensor golden_shard(const at::Tensor& full, const tensor::Placements& placements,
                        const tensor::DeviceMesh& mesh) {
  at::Tensor part = full;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const std::int64_t n = mesh.size(static_cast<int>(axis)), c = mesh.coordinate(static_cast<int>(axis));
    const tensor::AxisPlacement& at = placements[axis];
    if (at.is_shard()) {
      const std::int64_t size = part.size(at.dim()), step = (size + n - 1) / n,
                         begin = std::min(step * c, size);
      part = part.narrow(at.dim(), begin, std::min(step, size - begin));
    } else if (at.is_partial() && at.reduce() == comm::ReduceOp::Max) {
      part = c == n - 1 ? part : part - 2;
    } else if (at.is_partial() && at.reduce() == comm::ReduceOp::Min) {
      part = c == n - 1 ? part : part + 2;
    } else if (at.is_partial()) {
      part = c == 0 ? part - (n - 1) : at::ones_like(part);
      if (at.reduce() == comm::ReduceOp::Avg) part = part * n;
    }
  }
  return part.clone(at::MemoryFormat::Contiguous);
}

c10::IValue golden_argument(const c10::TypePtr& type, const std::string& text,
                            const std::vector<at::Tensor>& in) {
  const auto optional = type->cast<c10::OptionalType>();
  if (text == "none") return {};
  if (optional) return golden_argument(optional->getElementType(), text, in);
  std::vector<std::string> items;
  if (text[0] == '[') {
    std::string item;
    for (const char c : text.substr(1)) {
      if (c != ',' && c != ']') {
        item += c;
      } else {
        items.push_back(item);
        item.clear();
      }
    }
  }
  const auto input = [&](const std::string& name) { return in.at(std::stoul(name.substr(1))); };
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return input(text);
    case c10::TypeKind::BoolType:
      return text == "true";
    case c10::TypeKind::FloatType:
      return std::stod(text);
    case c10::TypeKind::NumberType:
      return text.find('.') == std::string::npos ? c10::IValue(std::int64_t{std::stoll(text)})
                                                 : c10::IValue(std::stod(text));
    case c10::TypeKind::IntType:  // a ScalarType is one, too
      return std::int64_t{text == "float64" ? static_cast<std::int64_t>(at::kDouble) : std::stoll(text)};
    case c10::TypeKind::ListType:
      break;
    default:
      throw std::runtime_error("no argument of type " + type->str() + ": " + text);
  }
  const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
  if (element->kind() == c10::TypeKind::IntType) {
    std::vector<std::int64_t> numbers;
    for (const std::string& item : items) numbers.push_back(std::stoll(item));
    return numbers;
  }
  if (element->kind() == c10::TypeKind::TensorType) {
    std::vector<at::Tensor> tensors;
    for (const std::string& item : items) tensors.push_back(input(item));
    return tensors;
  }
  c10::List<std::optional<at::Tensor>> tensors;
  for (const std::string& item : items) tensors.push_back(input(item));
  return tensors;
}

std::vector<at::Tensor> golden_call(const GoldenOp& op, const std::vector<at::Tensor>& in) {
  if (op.name == "redistribute") return {in[0]};
  const std::size_t dot = op.name.find('.');
  const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(
      op.name.substr(0, dot).c_str(), dot == std::string::npos ? "" : op.name.substr(dot + 1).c_str());
  std::map<std::string, std::string> named;
  std::vector<std::string> ordered;
  for (const std::string& arg : op.args) {
    const std::size_t equals = arg.find('=');
    if (equals == std::string::npos) {
      ordered.push_back(arg);
    } else {
      named[arg.substr(0, equals)] = arg.substr(equals + 1);
    }
  }
  torch::jit::Stack stack;
  std::size_t next = 0;
  for (const c10::Argument& argument : handle.schema().arguments()) {
    if (const auto found = named.find(argument.name()); found != named.end()) {
      stack.push_back(golden_argument(argument.type(), found->second, in));
    } else if (next < ordered.size()) {
      stack.push_back(golden_argument(argument.type(), ordered[next++], in));
    } else {
      stack.push_back(argument.default_value().value());
    }
  }
  handle.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      results.push_back(value.toTensor());
    } else {
      for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
    }
  }
  return results;
}

// The reference's values may come from another machine. Integers (`exact`) stay far below 2^24, so their sums
// are exact in any order; the others are float32 sums of a few dozen terms, within 2e-5 of the largest.
std::string unlike(const at::Tensor& got, const GoldenValue& want) {
  if (got.sizes() != want.tensor.sizes()) return "has other sizes";
  const at::Tensor far = (got.detach().to(at::kDouble) - want.tensor).abs();
  const double limit = want.exact ? 0 : 2e-5 * std::max(1.0, want.tensor.abs().max().item<double>());
  // A NaN never passes the limit.
  if (far.numel() == 0 || far.max().item<double>() <= limit) return {};
  return "differs by " + std::to_string(far.max().item<double>());
}

double golden_checksum(const at::Tensor& local) {
  const at::Tensor flat = local.detach().to(at::kDouble).flatten();
  return (flat * (at::arange(flat.numel(), at::kLong).remainder(13) + 1)).sum().item<double>();
}

//! Totals over all layouts, counted on the first rank of each mesh.
struct GoldenCount {
  std::atomic<int> layouts{0}, parts{0}, refused{0}, wrong{0}, results{0}, elsewhere{0};
};

//! After redistribution to the reference's placements, the local shard has the expected sizes and elements.
void check_part(const at::Tensor& result, const GoldenResult& want, bool exact,
                const tensor::DeviceMesh& mesh, GoldenCount& count) {
  for (const tensor::AxisPlacement& placement : want.placements) {
    if (placement.is_partial()) return;
  }
  const at::Tensor local = tensor::to_local(redistribute(result, want.placements));
  const auto& mine = want.ranks.at(static_cast<std::size_t>(mesh.all().rank()));
  if (local.sizes() != mine.sizes) throw std::runtime_error("this rank's part has other sizes");
  if (!mine.checksum) return;
  const double far = std::abs(golden_checksum(local) - *mine.checksum);
  if (!(far <= (exact ? 0 : 1e-3 * std::max(1.0, std::abs(*mine.checksum)))))
    throw std::runtime_error("this rank's part has another checksum, by " + std::to_string(far));
  if (mesh.all().rank() == 0) ++count.parts;
}

void check_layout(const GoldenOp& op, const GoldenLayout& layout, const tensor::DeviceMesh& mesh,
                  std::int64_t seed, GoldenCount& count) {
  const bool first = mesh.all().rank() == 0;
  std::vector<at::Tensor> in;
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const GoldenInput& input = op.inputs[k];
    const at::Tensor full = golden_numbers(input.kind, input.sizes, static_cast<std::int64_t>(k), seed);
    in.push_back(
        from_local(golden_shard(full, layout.inputs.at(k), mesh), mesh, layout.inputs[k], input.sizes));
    in.back().set_requires_grad(golden_has_gradient(input.kind));
  }
  const std::vector<at::Tensor> results = golden_call(op, in);
  if (results.size() != op.values.size()) throw std::runtime_error("other results");
  at::Tensor total;
  for (std::size_t r = 0; r < results.size(); ++r) {
    const GoldenValue& want = op.values[r];
    if (c10::toString(results[r].scalar_type()) != (want.dtype == "float32"   ? std::string("Float")
                                                    : want.dtype == "float64" ? "Double"
                                                    : want.dtype == "int64"   ? "Long"
                                                                              : "Bool"))
      throw std::runtime_error("is of another type");
    const at::Tensor full = tensor::full_tensor(results[r]);
    if (const std::string how = unlike(full, want); !how.empty())
      throw std::runtime_error("the value " + how);
    if (!layout.results.empty()) {
      check_part(results[r].detach(), layout.results[r], want.exact, mesh, count);
      if (first) {
        ++count.results;
        count.elsewhere += tensor::placements_of(results[r]) == layout.results[r].placements ? 0 : 1;
      }
    }
    if (!full.requires_grad()) continue;
    const at::Tensor weight =
        golden_numbers("small", full.sizes().vec(), static_cast<std::int64_t>(r), 9).to(full.scalar_type());
    const at::Tensor part = (full * weight).sum().to(at::kDouble);
    total = total.defined() ? total + part : part;
  }
  if (total.defined()) total.backward();
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (!op.gradients[k]) continue;
    if (!in[k].grad().defined()) throw std::runtime_error("no gradient " + std::to_string(k));
    const std::string how = unlike(tensor::full_tensor(in[k].grad()), *op.gradients[k]);
    if (!how.empty()) throw std::runtime_error("gradient " + std::to_string(k) + " " + how);
  }
  if (!first) return;
  ++count.layouts;
  if (layout.refusal == "refused") ++count.refused;
  if (layout.refusal == "differs") ++count.wrong;
}

void compare_with_goldens(const std::string& file) {
  const Goldens goldens = read_goldens(file);
  ASSERT_GT(goldens.ops.size(), 80U);
  std::size_t expected = 0;
  GoldenCount count;
  for (const GoldenShape& shape : {GoldenShape{2}, GoldenShape{3}, GoldenShape{4}, GoldenShape{2, 2}}) {
    for (const GoldenOp& op : goldens.ops) {
      std::vector<const GoldenLayout*> layouts;
      for (const GoldenLayout& layout : op.layouts) {
        if (layout.mesh == shape) layouts.push_back(&layout);
      }
      expected += layouts.size();
      try {
        on_mesh(shape, [&](const tensor::DeviceMesh& mesh) {
          for (const GoldenLayout* layout : layouts) {
            try {
              check_layout(op, *layout, mesh, goldens.seed, count);
            } catch (const std::exception& error) {
              throw std::runtime_error(op.name + ", " + layout->text + ": " + error.what());
            }
          }
        });
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
  EXPECT_EQ(static_cast<std::size_t>(count.layouts), expected);
  std::cout << count.layouts << " layouts, " << count.parts
            << " of them with parts to compare; the reference refuses " << count.refused
            << " and gives other values in " << count.wrong << "; of " << count.results << " results "
            << count.elsewhere << " have other placements than the reference's\n";
}

// With PENSTOCK_FRESH_GOLDENS, the reference first writes new goldens, using the Python named by
// PENSTOCK_PYTHON.
TEST(TensorGoldens, ResultsShardsAndGradientsMatchReference) {
  if (std::getenv("PENSTOCK_FRESH_GOLDENS") == nullptr)
    return compare_with_goldens(PENSTOCK_SOURCE_DIR "/tests/tensor/goldens.txt");
  const char* const named = std::getenv("PENSTOCK_PYTHON");
  const std::string python = named != nullptr ? named : "python3";
  if (run_program({python, "-c", "import torch; assert torch.__version__ >= '2.13'"}).code != 0)
    GTEST_SKIP() << "PENSTOCK_PYTHON names no Python with torch 2.13";
  const TempDir folder;
  const std::string file = folder / "goldens.txt", seed = std::to_string(2 + std::random_device()() % 1000);
  SCOPED_TRACE("seed " + seed);
  const Outcome made =
      run_program({python, "-W", "ignore", PENSTOCK_SOURCE_DIR "/tests/tensor/make_goldens.py", file,
                   "--seed", seed, "--layouts", "4"});
  ASSERT_EQ(made.code, 0) << made.err;
  compare_with_goldens(file);
}

}  // namespace
}  // namespace penstock::test
