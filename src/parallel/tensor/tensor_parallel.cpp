// Applies a plan to a module. libtorch modules hold two handles to each parameter, a member and an entry in
// the parameter table; both are replaced. Prepare styles use the hooks of `ps::call`.
#include "base/text.h"
#include "graph/run/exported_access.h"
#include "parallel/replica_agreement.h"
#include "parallel/tensor/module_paths.h"
#include "parallel/tensor/prepare.h"
#include "runtime/stage/hooked_module.h"
#include "tensor/dispatch/dtensor_impl.h"

#include <penstock/base/error.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/runtime/module_call.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <exception>
#include <map>

namespace penstock::parallel {
namespace {

using torch::nn::Module;

// Only subclasses can access the parameter table.
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

//! Sets the member of a libtorch module, or lets a custom module set its own. Returns false for other
//! modules. Without a tensor, only checks whether the member can be set.
bool set_member(Module& module, const std::string& name, const at::Tensor* tensor) {
  const auto set = [&](auto* stock) {
    if (!stock || !tensor) return stock != nullptr;
    if (name == "weight") stock->weight = *tensor;
    if constexpr (requires { stock->bias; }) {
      if (name == "bias") stock->bias = *tensor;
    }
    return true;
  };
  if (set(dynamic_cast<torch::nn::LinearImpl*>(&module)) ||
      set(dynamic_cast<torch::nn::EmbeddingImpl*>(&module)) ||
      set(dynamic_cast<torch::nn::LayerNormImpl*>(&module))) {
    return true;
  }
  auto* exchangeable = dynamic_cast<ExchangeableParameters*>(&module);
  if (exchangeable && tensor) exchangeable->exchange_parameter(name, *tensor);
  return exchangeable != nullptr;
}

struct Exchange {
  Module* module;
  std::string name;
  at::Tensor plain, distributed;
};

//! The changes that a plan requires, computed before anything is modified.
struct Changes {
  std::vector<Exchange> exchanges;
  std::map<const c10::TensorImpl*, at::Tensor> distributed;  //!< by plain parameter: keeps tied ones tied
  struct Hook {
    std::shared_ptr<Module> module;
    std::shared_ptr<runtime::detail::CallHooks> hooks;
  };
  std::vector<Hook> hooks;

  const Exchange* find(const Module& module, const std::string& name) const {
    const auto same = [&](const Exchange& e) { return e.module == &module && e.name == name; };
    const auto found = std::find_if(exchanges.begin(), exchanges.end(), same);
    return found == exchanges.end() ? nullptr : &*found;
  }
};

void set_parameter(const Exchange& exchange, const at::Tensor& tensor) {
  set_member(*exchange.module, exchange.name, &tensor);
  Table::of(*exchange.module)[exchange.name] = tensor;
}

//! Applies all changes, or none if a custom module throws.
void apply(const Changes& changes) {
  std::size_t done = 0;
  try {
    for (; done < changes.exchanges.size(); ++done)
      set_parameter(changes.exchanges[done], changes.exchanges[done].distributed);
  } catch (...) {
    const std::exception_ptr cause = std::current_exception();
    for (std::size_t i = done + 1; i-- > 0;) {
      try {
        set_parameter(changes.exchanges[i], changes.exchanges[i].plain);
      } catch (...) {  // the module that threw; the original error is reported
      }
    }
    std::rethrow_exception(cause);
  }
  for (const Changes::Hook& hook : changes.hooks)
    runtime::hook_module(dynamic_cast<const void*>(hook.module.get()), hook.module, hook.hooks);
}

//! Redistributes the tensors of calls.
class Preparing : public runtime::detail::CallHooks {
 public:
  Preparing(tensor::DeviceMesh mesh, std::string path, std::optional<PrepareModuleInput> input,
            std::optional<PrepareModuleOutput> output)
      : mesh_(std::move(mesh)),
        path_(std::move(path)),
        input_(std::move(input)),
        output_(std::move(output)) {}

  void before() override {}
  void after(const std::vector<at::Tensor>& /*outputs*/) override {}

  void expect_arguments(std::size_t count) override {
    if (input_) check_arguments(*input_, count, path_);
  }
  void expect_results(std::size_t count) override {
    if (output_) check_results(*output_, count, path_);
  }
  at::Tensor argument(const at::Tensor& tensor, std::size_t index) override {
    return input_ ? prepared_argument(tensor, index, mesh_, *input_) : tensor;
  }
  at::Tensor result(const at::Tensor& tensor, std::size_t index) override {
    return output_ ? prepared_result(tensor, index, mesh_, *output_) : tensor;
  }

 private:
  tensor::DeviceMesh mesh_;
  std::string path_;
  std::optional<PrepareModuleInput> input_;
  std::optional<PrepareModuleOutput> output_;
};

class Applying {
 public:
  Applying(const tensor::DeviceMesh& mesh, Changes& changes, const std::string& path, Module& module)
      : mesh_(mesh), changes_(changes), path_(path), module_(module) {}

  void operator()(const ColwiseParallel&) const {
    if (dynamic_cast<torch::nn::EmbeddingImpl*>(&module_)) return shard("weight", tensor::Shard(1));
    if (!dynamic_cast<torch::nn::LinearImpl*>(&module_))
      misfit(path_, module_, "ColwiseParallel", stock_hint());
    shard("weight", tensor::Shard(0));
    shard("bias", tensor::Shard(0));
  }

  void operator()(const RowwiseParallel&) const {
    if (dynamic_cast<torch::nn::EmbeddingImpl*>(&module_)) return shard("weight", tensor::Shard(0));
    if (!dynamic_cast<torch::nn::LinearImpl*>(&module_))
      misfit(path_, module_, "RowwiseParallel", stock_hint());
    shard("weight", tensor::Shard(1));
    shard("bias", tensor::Replicate());
  }

  void operator()(const SequenceParallel& style) const {
    const auto request =
        std::make_shared<tensor::InputRequest>(tensor::InputRequest{{tensor::Shard(style.dim)}});
    std::vector<std::string> names;
    for (const auto& item : Table::of(module_)) {
      if (item.value().defined()) names.push_back(item.key());
    }
    if (names.empty()) {
      misfit(path_, module_, "SequenceParallel",
             "it has no parameters; its input stays sharded if the output of the previous module is");
    }
    for (const std::string& name : names) {
      shard(name, tensor::Replicate());
      tensor::impl_of(changes_.find(module_, name)->distributed)->input_request = request;
    }
  }

  void operator()(const DistributeParameters& style) const {
    for (const auto& [name, placement] : style.parameters) {
      if (!Table::of(module_).contains(name)) {
        throw UsageError("module " + quote(path_) + " has no parameter " + quote(name), {}, "");
      }
      shard(name, placement);
    }
  }

  void operator()(const PrepareModuleInput& style) const { hook(style, std::nullopt); }
  void operator()(const PrepareModuleOutput& style) const { hook(std::nullopt, style); }
  void operator()(const PrepareModuleInputOutput& style) const { hook(style.input, style.output); }

 private:
  static std::string stock_hint() {
    return "it applies to torch::nn::Linear and torch::nn::Embedding; list other parameters with "
           "DistributeParameters";
  }

  void hook(std::optional<PrepareModuleInput> input, std::optional<PrepareModuleOutput> output) const {
    std::shared_ptr<Module> owner = module_.weak_from_this().lock();
    if (!owner) {
      throw UsageError(
          "module " + quote(path_) + " is not owned by a shared_ptr, so its calls cannot be hooked", {},
          "create it with std::make_shared or as a TORCH_MODULE holder");
    }
    changes_.hooks.push_back(
        {std::move(owner), std::make_shared<Preparing>(mesh_, path_, std::move(input), std::move(output))});
  }

  void shard(const std::string& name, const tensor::AxisPlacement& placement) const {
    auto& table = Table::of(module_);
    if (!table.contains(name) || !table[name].defined()) return;
    const at::Tensor plain = table[name];
    if (tensor::is_dtensor(plain) || changes_.find(module_, name)) {
      throw UsageError("parameter " + quote(path_ + "." + name) + " is already distributed", {},
                       "list each module in one entry of the plan");
    }
    if (!set_member(module_, name, nullptr)) {
      throw UsageError("module " + quote(path_) + " (" + module_.name() +
                           ") holds handles to its parameters that cannot be replaced",
                       {}, "derive it from penstock::parallel::ExchangeableParameters");
    }
    at::Tensor& sharded = changes_.distributed[plain.unsafeGetTensorImpl()];
    if (!sharded.defined()) {
      sharded = distribute_parameter(plain, mesh_, {placement});
    } else if (!(tensor::placements_of(sharded)[0] == placement)) {
      throw UsageError("parameter " + quote(path_ + "." + name) +
                       " is tied to one that is sharded differently: " + to_string(placement) + " and " +
                       to_string(tensor::placements_of(sharded)));
    }
    changes_.exchanges.push_back({&module_, name, plain, sharded});
  }

  const tensor::DeviceMesh& mesh_;
  Changes& changes_;
  const std::string& path_;
  Module& module_;
};

//! Operators of an exported model read parameters by slot, so its graph is changed and the parameters of the
//! module follow.
void parallelize_exported(graph::ExportedModuleImpl& module, const tensor::DeviceMesh& mesh,
                          const ParallelPlan& plan) {
  graph::GraphModule changed = graph::Access::graph_module(module);
  parallelize_module(changed, mesh, plan);
  graph::Access::adopt(module, changed);
}

}  // namespace

void parallelize_module(Module& module, const tensor::DeviceMesh& mesh, const ParallelPlan& plan) {
  if (auto* exported = dynamic_cast<graph::ExportedModuleImpl*>(&module))
    return parallelize_exported(*exported, mesh, plan);
  check_one_axis(mesh);
  for (const at::Tensor& parameter : module.parameters()) {
    require_own_device(mesh.group(0), parameter.device());
    break;
  }
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> modules;
  std::vector<std::string> paths;
  for (const auto& item : module.named_modules("", false)) {
    modules.emplace_back(item.key(), item.value());
    paths.push_back(item.key());
  }
  Changes changes;
  const auto plan_for = [&](const std::string& path, Module& found, const ParallelStyle& style) {
    std::visit(Applying(mesh, changes, path, found), style);
  };
  for (const auto& [pattern, style] : plan) {
    bool fits = pattern.empty();
    if (fits) plan_for(pattern, module, style);
    for (const auto& [path, found] : modules) {
      if (!path_fits(pattern, path)) continue;
      plan_for(path, *found, style);
      fits = true;
    }
    if (!fits) refuse_path(pattern, paths);
  }
  apply(changes);
}

}  // namespace penstock::parallel
