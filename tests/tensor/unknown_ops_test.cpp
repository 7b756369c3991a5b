// Every operator of libtorch, called with distributed tensors if arguments can be generated: it gives the
// same result as for dense tensors, or our error names it.
#include "support/error_message.h"
#include "support/mesh_ranks.h"

#include <penstock/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/torch.h>

#include <iostream>
#include <set>

namespace penstock::test {
namespace {

using torch::jit::Stack;

//! Operators that are not pure functions, that start something, or in which libtorch itself crashes with such
//! arguments; also quantization and set_, which access memory.
bool left_out(const c10::OperatorHandle& op) {
  static const std::set<std::string> names{
      "from_file", "pin_memory",     "record_stream", "set_data",
      "data",      "requires_grad_", "empty",         "retain_grad",
      "is_pinned", "equal",          "rename",        "rename_",
      "align_to",  "refine_names",   "warn",          "quantize_per_tensor",
      "set_"};
  const std::string& name = op.schema().name();
  const std::string base = name.substr(name.find("::") + 2);
  if (names.contains(base) || base.starts_with("_")) return true;
  for (const char* part :
       {"empty", "cudnn", "miopen", "quantize", "sparse", "fbgemm", "mkldnn", "nested", "cuda", "names",
        "fake_quant", "rand", "batch_norm", "qparams", "rnn", "lstm", "gru", "to_padded"}) {
    if (base.find(part) != std::string::npos) return true;
  }
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

//! The arguments of all operators in one sweep.
struct ArgumentShape {
  std::vector<std::int64_t> sizes;     //!< of every tensor
  std::vector<std::int64_t> integers;  //!< every list of integers: dims, sizes, kernel sizes, strides, …
};

std::string text_of(const ArgumentShape& shape) {
  return c10::str(c10::IntArrayRef(shape.sizes));
}

at::Tensor made_up(const ArgumentShape& shape, std::int64_t seed) {
  return numbers(shape.sizes, static_cast<unsigned>(seed)).sigmoid();
}

//! Empty if no value can be generated.
std::optional<c10::IValue> argument(const c10::Argument& argument, const ArgumentShape& shape,
                                    const std::function<at::Tensor()>& tensor) {
  const c10::TypePtr type = argument.type();
  if (type->kind() == c10::TypeKind::TensorType) return tensor();
  if (type->isSubtypeOf(*c10::ListType::ofTensors())) return std::vector<at::Tensor>{tensor(), tensor()};
  if (argument.default_value()) return *argument.default_value();
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return c10::IValue();
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return std::int64_t{1};
    case c10::TypeKind::FloatType:
      return 0.5;
    case c10::TypeKind::BoolType:
      return false;
    case c10::TypeKind::NumberType:
      return c10::IValue(at::Scalar(0.5));
    case c10::TypeKind::ListType: {
      const c10::TypeKind item = type->castRaw<c10::ListType>()->getElementType()->kind();
      if (item != c10::TypeKind::IntType && item != c10::TypeKind::SymIntType) return std::nullopt;
      if (argument.name() == "normalized_shape") return std::vector<std::int64_t>{shape.sizes.back()};
      return c10::IValue(shape.integers);
    }
    default:
      return std::nullopt;
  }
}

std::optional<Stack> arguments(const c10::FunctionSchema& schema, const ArgumentShape& shape,
                               const std::function<at::Tensor()>& tensor) {
  Stack stack;
  for (const c10::Argument& a : schema.arguments()) {
    if (a.is_out()) return std::nullopt;
    std::optional<c10::IValue> value = argument(a, shape, tensor);
    if (!value) return std::nullopt;
    stack.push_back(*value);
  }
  return stack;
}

std::vector<at::Tensor> tensors(const Stack& stack) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) all.push_back(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& t : value.toTensorVector()) all.push_back(t);
  }
  return all;
}

using WeakTensors = std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>>;

//! The problem of the operator on distributed tensors; empty if there is none, nullopt if the operator does
//! not accept the arguments as dense tensors. Adds its arguments and results to `seen`.
std::optional<std::string> fault(const c10::OperatorHandle& op, const ArgumentShape& shape,
                                 const tensor::DeviceMesh& mesh, bool grad, WeakTensors& seen) {
  unsigned seed = 0;
  const auto dense_input = [&] { return made_up(shape, seed++).set_requires_grad(grad); };
  std::vector<at::Tensor> leaves;
  std::optional<Stack> dense =
      arguments(op.schema(), shape, [&] { return leaves.emplace_back(dense_input()); });
  if (!dense || leaves.empty()) return std::nullopt;
  try {
    op.callBoxed(&*dense);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  // lift and lift_fresh return their dense argument, whose gradient function then refers to itself.
  for (at::Tensor& leaf : leaves)
    if (leaf.grad_fn()) leaf.detach_();
  seed = 0;
  Stack stack = *arguments(op.schema(), shape, [&] {
    const at::Tensor made = distribute_tensor(dense_input(), mesh, {tensor::Shard(0)}, false);
    seen.emplace_back(made.getIntrusivePtr());
    return made;
  });
  try {
    op.callBoxed(&stack);
  } catch (const Error& e) {
    const std::string text = e.what();
    return text.find("aten::") != std::string::npos ? "" : text;
  } catch (const std::exception& e) {
    return e.what();
  }
  const std::vector<at::Tensor> want = tensors(*dense), got = tensors(stack);
  for (const at::Tensor& t : got)
    if (t.defined()) seen.emplace_back(t.getIntrusivePtr());
  if (want.size() != got.size()) return "another number of results";
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!want[i].defined() && !got[i].defined()) continue;
    if (want[i].sizes() != got[i].sizes()) return "sizes " + c10::str(got[i].sizes());
    const at::Tensor all = full_copy(got[i]).resolve_conj();
    if (!at::allclose(all.to(at::kDouble), want[i].detach().to(at::kDouble), 1e-4, 1e-4, true))
      return "other values";
  }
  return "";
}

TEST(TensorUnknownOps, MatchDenseOrReportMissingRule) {
  // Matrices with dims; images and sequences with kernel sizes, for convolutions, pooling and norms.
  const std::vector<ArgumentShape> shapes = {{{4, 4}, {0, 1}}, {{2, 4, 4, 4}, {2, 2}}, {{2, 4, 4}, {2}}};
  std::vector<std::string> faults;
  std::set<std::string> called;
  std::vector<int> calls(shapes.size());
  on_mesh({2}, [&](const tensor::DeviceMesh& mesh) {
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!name.name.starts_with("aten::")) continue;
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op || left_out(*op)) continue;
      const bool writes = op->schema().is_mutable();
      for (std::size_t s = 0; s < shapes.size(); ++s) {
        for (const bool grad : {false, true}) {
          if (grad && writes) continue;
          WeakTensors seen;
          std::optional<std::string> found = fault(*op, shapes[s], mesh, grad, seen);
          if (!found) continue;
          // A tensor that outlives its operator is part of a reference cycle.
          for (const auto& tensor : seen)
            if (found->empty() && !tensor.expired()) found = "a tensor is never freed";
          if (mesh.coordinate(0) != 0) continue;
          ++calls[s];
          called.insert(c10::toString(name));
          if (!found->empty())
            faults.push_back(c10::toString(name) + " of " + text_of(shapes[s]) +
                             (grad ? " with gradient: " : ": ") + found->substr(0, 300));
        }
      }
    }
  });
  int total = 0;
  for (std::size_t s = 0; s < shapes.size(); ++s) {
    std::cout << text_of(shapes[s]) << ": " << calls[s] << " calls\n";
    total += calls[s];
  }
  EXPECT_GT(total, 500);
  for (const char* name : {"conv1d", "conv2d", "max_pool2d", "avg_pool2d", "layer_norm", "group_norm"})
    EXPECT_TRUE(called.contains(std::string("aten::") + name)) << name;
  for (const std::string& one : faults) ADD_FAILURE() << one;
}

TEST(TensorUnknownOps, ReportOperatorCalledByUser) {
  on_mesh({2}, [](const tensor::DeviceMesh& mesh) {
    const at::Tensor image = distribute_tensor(numbers({2, 3, 8, 8}, 1), mesh, {tensor::Shard(0)}, false);
    const at::Tensor kernel = distribute_tensor(numbers({4, 3, 3, 3}, 2), mesh, {tensor::Replicate()}, false);
    const auto expect = [&](const char* op, const std::function<void()>& call) {
      try {
        call();
        ADD_FAILURE() << op;
      } catch (const UsageError& e) {
        const std::string text = e.what();
        EXPECT_NE(text.find("there is no sharding rule for aten::" + std::string(op)), std::string::npos)
            << text;
        EXPECT_NE(text.find("[Shard(0)]"), std::string::npos) << text;
        EXPECT_NE(e.hint().find("redistribute its arguments to Replicate"), std::string::npos) << e.hint();
      }
    };
    expect("convolution", [&] { at::conv2d(image, kernel); });
    expect("convolution_backward", [&] {
      at::convolution_backward(image, image, kernel, std::nullopt, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1,
                               {true, true, false});
    });
    expect("as_strided", [&] { image.as_strided({2}, {1}); });
    expect("diagonal_copy", [&] { at::diagonal_copy(image, 0, 2, 3); });
    expect("unfold_copy", [&] { at::unfold_copy(image, 2, 2, 2); });
    EXPECT_ERROR(image.transpose_(0, 1), UsageError, "there is no sharding rule for aten::transpose_");
    EXPECT_ERROR(image.squeeze_(), UsageError, "there is no sharding rule for aten::squeeze_");
    EXPECT_EQ(image.sizes(), (std::vector<std::int64_t>{2, 3, 8, 8}));
    const tensor::ReplicateUnknownOps allowed;
    EXPECT_LT(difference(tensor::full_tensor(at::conv2d(image, kernel)),
                         at::conv2d(tensor::full_tensor(image), tensor::full_tensor(kernel))),
              1e-4);
  });
}

}  // namespace
}  // namespace penstock::test
