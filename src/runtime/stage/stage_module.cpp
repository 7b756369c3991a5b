// Wraps torch::nn modules as stage modules.
#include "base/text.h"
#include "tensor/layout/mesh_impl.h"

#include <penstock/base/error.h>
#include <penstock/runtime/stage_module.h>
#include <penstock/tensor/dtensor.h>

#include <torch/nn/module.h>

#include <algorithm>

namespace penstock::runtime {
namespace {

class NnStageModule : public StageModule {
 public:
  NnStageModule(std::shared_ptr<torch::nn::Module> owner, StageFunction forward,
                std::optional<std::set<std::string>> keywords)
      : owner_(std::move(owner)), forward_(std::move(forward)), keywords_(std::move(keywords)) {}

  StageResult forward(const value::Args& args, const value::Kwargs& kwargs) override {
    return forward_(args, kwargs);
  }

  std::vector<value::NamedTensor> parameters() const override {
    return owner_ ? named(owner_->named_parameters()) : std::vector<value::NamedTensor>();
  }
  std::vector<value::NamedTensor> buffers() const override {
    return owner_ ? named(owner_->named_buffers()) : std::vector<value::NamedTensor>();
  }
  void to(at::Device device) override {
    if (owner_) owner_->to(device);
  }
  void train(bool on) override {
    training_ = on;
    if (owner_) owner_->train(on);
  }
  bool is_training() const override { return owner_ ? owner_->is_training() : training_; }

  std::function<void()> enter_eval() override {
    if (!owner_) return StageModule::enter_eval();
    // A module comes before its submodules: restoring its mode also sets theirs, which are then restored in
    // turn.
    std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes{{owner_, owner_->is_training()}};
    for (const auto& module : owner_->modules(/*include_self=*/false))
      modes.emplace_back(module, module->is_training());
    owner_->eval();
    return [modes = std::move(modes)] {
      for (const auto& [module, on] : modes) {
        if (module->is_training() != on) module->train(on);
      }
    };
  }

  std::optional<std::set<std::string>> keywords() const override { return keywords_; }

 private:
  static std::vector<value::NamedTensor> named(const torch::OrderedDict<std::string, at::Tensor>& dict) {
    std::vector<value::NamedTensor> all;
    for (const auto& item : dict) all.push_back({item.key(), item.value()});
    return all;
  }

  std::shared_ptr<torch::nn::Module> owner_;
  StageFunction forward_;
  std::optional<std::set<std::string>> keywords_;
  bool training_ = true;  // used if there is no owner
};

}  // namespace

std::function<void()> StageModule::enter_eval() {
  const bool on = is_training();
  eval();
  return [this, on] { train(on); };
}

std::vector<tensor::DeviceMesh> StageModule::meshes() const {
  std::vector<tensor::DeviceMesh> all;
  for (const value::NamedTensor& item : parameters()) {
    if (!tensor::is_dtensor(item.tensor)) continue;
    const tensor::DeviceMesh mesh = tensor::mesh_of(item.tensor);
    const auto same = [&](const tensor::DeviceMesh& other) {
      return tensor::Access::impl(other) == tensor::Access::impl(mesh);
    };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(mesh);
  }
  return all;
}

std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<torch::nn::Module> owner,
                                               StageFunction forward) {
  if (!forward) {
    throw UsageError(
        "a stage module was given no forward function", {},
        "pass a function of (const Args&, const Kwargs&), or only a module whose forward to call");
  }
  return std::make_shared<NnStageModule>(std::move(owner), std::move(forward), std::nullopt);
}

std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<torch::nn::Module> owner,
                                               StageFunction forward, const std::set<std::string>& keywords) {
  if (!forward) {
    const std::vector<std::string> names(keywords.begin(), keywords.end());
    throw UsageError(
        "a stage module was given no forward function for its keyword arguments (" + join(names, ", ") + ")",
        {}, "pass a function of (const Args&, const Kwargs&) that takes them");
  }
  return std::make_shared<NnStageModule>(std::move(owner), std::move(forward), keywords);
}

namespace detail {

const char* keywords_hint() {
  return "name the parameters of its forward function, make_stage_module(module, {\"x\", \"mask\"}), or give "
         "it a forward(const Args&, const Kwargs&)";
}

const std::set<std::string>& no_keywords() {
  static const std::set<std::string> none;
  return none;
}

void wrong_argument_count(std::size_t given, std::size_t wanted) {
  throw UsageError(
      str_cat("the forward function of the stage takes ", wanted, " arguments but was given ", given), {},
      "the items of the previous stage's output tuple are this stage's arguments");
}

void check_no_keywords(const value::Kwargs& kwargs) {
  if (kwargs.empty()) return;
  throw UsageError("the forward function of the stage was given the keyword argument " +
                       quote(kwargs.begin()->first) + ", but its C++ parameters have no names",
                   {}, keywords_hint());
}

void check_parameter_names(const std::vector<std::string>& names, std::size_t parameters) {
  if (names.size() != parameters) {
    throw UsageError(str_cat("the forward function has ", parameters, " parameters, but ", names.size(),
                             " names were given"),
                     {}, "name every parameter of the forward function, in order");
  }
  if (std::set<std::string>(names.begin(), names.end()).size() != names.size()) {
    throw UsageError("two parameters of a forward function were given the same name: " + join(names, ", "),
                     {}, "give every parameter its own name");
  }
}

value::Args ordered_arguments(const value::Args& args, const value::Kwargs& kwargs,
                              const std::vector<std::string>& names, const std::vector<bool>& optional) {
  if (args.size() > names.size()) wrong_argument_count(args.size(), names.size());
  value::Args ordered = args;
  std::size_t taken = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto given = kwargs.find(names[i]);
    if (given != kwargs.end()) ++taken;
    if (i < args.size()) {
      if (given == kwargs.end()) continue;
      throw UsageError("the argument " + quote(names[i]) + " is passed both positionally and by keyword", {},
                       "pass it once");
    }
    if (given == kwargs.end() && !optional[i]) {
      throw UsageError("the stage's forward needs the argument " + quote(names[i]), {},
                       "pass it by position or by name; the parameters are " + join(names, ", "));
    }
    ordered.push_back(given == kwargs.end() ? c10::IValue() : given->second);
  }
  if (taken == kwargs.size()) return ordered;
  for (const auto& [name, value] : kwargs) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw UsageError("the stage's forward does not take the keyword argument " + quote(name), {},
                       "the parameters are " + join(names, ", "));
    }
  }
  return ordered;
}

}  // namespace detail
}  // namespace penstock::runtime
