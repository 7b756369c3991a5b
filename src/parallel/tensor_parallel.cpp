// Applying a plan. A module of libtorch holds two handles to each parameter, its member and an entry of its
// table: both are exchanged. Calls are prepared through the hooks of `ps::call`.
#include "parallel/module_paths.h"
#include "parallel/prepare.h"
#include "tensor/impl.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/value/call.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <map>

namespace penstock {
namespace {

using torch::nn::Module;

// The table of parameters is open to subclasses only.
struct Table : Module {
  static torch::OrderedDict<std::string, at::Tensor>& of(Module& module) {
    return module.*(&Table::parameters_);
  }
};

[[noreturn]] void misfit(const std::string& path, const Module& module, const char* style,
                         const std::string& hint) {
  throw UsageError(std::string(style) + " does not fit module " + quote(path) + " (" + module.name() + ")",
                   {}, hint);
}

//! Sets the member that a stock module computes with; false for a module of another type.
bool set_member(Module& module, const std::string& name, const at::Tensor& tensor) {
  const auto set = [&](auto* stock) {
    if (!stock) return false;
    if (name == "weight") stock->weight = tensor;
    if constexpr (requires { stock->bias; }) {
      if (name == "bias") stock->bias = tensor;
    }
    return true;
  };
  if (set(dynamic_cast<torch::nn::LinearImpl*>(&module)) ||
      set(dynamic_cast<torch::nn::EmbeddingImpl*>(&module)) ||
      set(dynamic_cast<torch::nn::LayerNormImpl*>(&module))) {
    return true;
  }
  auto* own = dynamic_cast<ExchangeableParameters*>(&module);
  if (own) own->exchange_parameter(name, tensor);
  return own != nullptr;
}

//! The plain parameters that were exchanged, so that tied ones stay tied.
using Exchanged = std::map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>>;

class Applying {
 public:
  Applying(const DeviceMesh& mesh, Exchanged& done, const std::string& path, Module& module)
      : mesh_(mesh), done_(done), path_(path), module_(module) {}

  void operator()(const ColwiseParallel&) const {
    if (dynamic_cast<torch::nn::EmbeddingImpl*>(&module_)) return cut("weight", Shard(1));
    if (!dynamic_cast<torch::nn::LinearImpl*>(&module_))
      misfit(path_, module_, "ColwiseParallel", stock_hint());
    cut("weight", Shard(0));
    cut("bias", Shard(0));
  }

  void operator()(const RowwiseParallel&) const {
    if (dynamic_cast<torch::nn::EmbeddingImpl*>(&module_)) return cut("weight", Shard(0));
    if (!dynamic_cast<torch::nn::LinearImpl*>(&module_))
      misfit(path_, module_, "RowwiseParallel", stock_hint());
    cut("weight", Shard(1));
    cut("bias", Replicate());
  }

  void operator()(const SequenceParallel& style) const {
    const auto wish = std::make_shared<Wish>(Wish{{Shard(style.dim)}});
    std::vector<std::string> names;
    for (const auto& item : Table::of(module_)) {
      if (item.value().defined()) names.push_back(item.key());
    }
    if (names.empty()) {
      misfit(path_, module_, "SequenceParallel",
             "it has no parameters to carry the style; its input stays cut if what comes before it is");
    }
    for (const std::string& name : names) {
      cut(name, Replicate());
      impl_of(Table::of(module_)[name])->wish = wish;
    }
  }

  void operator()(const DistributeParameters& style) const {
    for (const auto& [name, placement] : style.parameters) {
      if (!Table::of(module_).contains(name)) {
        throw UsageError("module " + quote(path_) + " has no parameter " + quote(name), {}, "");
      }
      cut(name, placement);
    }
  }

  // What calls do is attached elsewhere.
  void operator()(const PrepareModuleInput&) const {}
  void operator()(const PrepareModuleOutput&) const {}
  void operator()(const PrepareModuleInputOutput&) const {}

 private:
  static std::string stock_hint() {
    return "it cuts torch::nn::Linear and torch::nn::Embedding; name other parameters with "
           "DistributeParameters";
  }

  void cut(const std::string& name, const AxisPlacement& placement) const {
    auto& table = Table::of(module_);
    if (!table.contains(name) || !table[name].defined()) return;
    const at::Tensor plain = table[name];
    if (is_dtensor(plain)) {
      throw UsageError("parameter " + quote(path_ + "." + name) + " is distributed already", {},
                       "name each module in one entry of the plan");
    }
    auto& [kept, cut] = done_[plain.unsafeGetTensorImpl()];
    if (!cut.defined()) {
      kept = plain;  // so that its address is not given to another
      cut = distribute_parameter(plain, mesh_, {placement});
    } else if (!(placements_of(cut)[0] == placement)) {
      throw UsageError("parameter " + quote(path_ + "." + name) +
                       " is tied to one that is cut differently: " + placement.text() + " and " +
                       text(placements_of(cut)));
    }
    if (!set_member(module_, name, cut)) {
      throw UsageError("module " + quote(path_) + " (" + module_.name() +
                           ") holds handles to its parameters that cannot be exchanged",
                       {}, "derive it from ps::ExchangeableParameters");
    }
    table[name] = cut;
  }

  const DeviceMesh& mesh_;
  Exchanged& done_;
  const std::string& path_;
  Module& module_;
};

//! Prepares the tensors of calls.
class Preparing : public CallHooks {
 public:
  Preparing(DeviceMesh mesh, std::optional<PrepareModuleInput> input,
            std::optional<PrepareModuleOutput> output)
      : mesh_(std::move(mesh)), input_(std::move(input)), output_(output) {}

  void before() override {}
  void after(const std::vector<at::Tensor>& /*outputs*/) override {}

  at::Tensor argument(const at::Tensor& tensor, std::size_t index) override {
    return input_ ? prepared_argument(tensor, index, mesh_, *input_) : tensor;
  }

  at::Tensor result(const at::Tensor& tensor) override {
    return output_ ? prepared_result(tensor, *output_) : tensor;
  }

 private:
  DeviceMesh mesh_;
  std::optional<PrepareModuleInput> input_;
  std::optional<PrepareModuleOutput> output_;
};

struct Attaching {
  const DeviceMesh& mesh;
  const void* module;
  std::vector<HookedModule>& hooks;

  void attach(std::optional<PrepareModuleInput> input, std::optional<PrepareModuleOutput> output) const {
    hooks.emplace_back(module, std::make_shared<Preparing>(mesh, std::move(input), output));
  }
  void operator()(const PrepareModuleInput& style) const { attach(style, std::nullopt); }
  void operator()(const PrepareModuleOutput& style) const { attach(std::nullopt, style); }
  void operator()(const PrepareModuleInputOutput& style) const { attach(style.input, style.output); }
  template <class Other>
  void operator()(const Other& /*style*/) const {}
};

}  // namespace

Parallelized::Parallelized() = default;
Parallelized::Parallelized(Parallelized&&) noexcept = default;
Parallelized& Parallelized::operator=(Parallelized&& other) noexcept {
  hooks.swap(other.hooks);
  return *this;
}
Parallelized::~Parallelized() = default;

Parallelized parallelize_module(Module& module, const DeviceMesh& mesh, const ParallelPlan& plan) {
  check_one_axis(mesh);
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> modules;
  std::vector<std::string> paths;
  for (const auto& item : module.named_modules("", false)) {
    modules.emplace_back(item.key(), item.value());
    paths.push_back(item.key());
  }
  Parallelized result;
  Exchanged done;
  const auto apply = [&](const std::string& path, Module& found, const ParallelStyle& style) {
    std::visit(Applying(mesh, done, path, found), style);
    std::visit(Attaching{mesh, dynamic_cast<const void*>(&found), result.hooks}, style);
  };
  for (const auto& [pattern, style] : plan) {
    bool fits = pattern.empty();
    if (fits) apply(pattern, module, style);
    for (const auto& [path, found] : modules) {
      if (!path_fits(pattern, path)) continue;
      apply(path, *found, style);
      fits = true;
    }
    if (!fits) refuse_path(pattern, paths);
  }
  return result;
}

}  // namespace penstock
