// Modules of torch::nn as stage modules.
#include <penstock/base/error.h>
#include <penstock/runtime/stage_module.h>
#include <penstock/tensor/dtensor.h>

#include <torch/nn/module.h>

#include <algorithm>

namespace penstock {
namespace {

class NnStageModule : public StageModule {
 public:
  NnStageModule(std::shared_ptr<torch::nn::Module> owner, StageFunction forward,
                std::optional<std::set<std::string>> keywords)
      : owner_(std::move(owner)), forward_(std::move(forward)), keywords_(std::move(keywords)) {}

  StageResult forward(const Args& args, const Kwargs& kwargs) override { return forward_(args, kwargs); }

  std::vector<NamedTensor> parameters() const override {
    return owner_ ? named(owner_->named_parameters()) : std::vector<NamedTensor>();
  }
  std::vector<NamedTensor> buffers() const override {
    return owner_ ? named(owner_->named_buffers()) : std::vector<NamedTensor>();
  }
  void to(at::Device device) override {
    if (owner_) owner_->to(device);
  }
  std::optional<std::set<std::string>> keywords() const override { return keywords_; }

 private:
  static std::vector<NamedTensor> named(const torch::OrderedDict<std::string, at::Tensor>& dict) {
    std::vector<NamedTensor> all;
    for (const auto& item : dict) all.push_back({item.key(), item.value()});
    return all;
  }

  std::shared_ptr<torch::nn::Module> owner_;
  StageFunction forward_;
  std::optional<std::set<std::string>> keywords_;
};

}  // namespace

std::vector<DeviceMesh> StageModule::meshes() const {
  std::vector<DeviceMesh> all;
  for (const NamedTensor& item : parameters()) {
    if (!is_dtensor(item.tensor)) continue;
    const DeviceMesh mesh = mesh_of(item.tensor);
    const auto same = [&](const DeviceMesh& other) { return other.state() == mesh.state(); };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(mesh);
  }
  return all;
}

std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<torch::nn::Module> owner,
                                               StageFunction forward) {
  if (!forward) throw UsageError("a stage needs a function to run");
  return std::make_shared<NnStageModule>(std::move(owner), std::move(forward), std::nullopt);
}

std::shared_ptr<StageModule> make_stage_module(std::shared_ptr<torch::nn::Module> owner,
                                               StageFunction forward, const std::set<std::string>& keywords) {
  if (!forward) throw UsageError("a stage needs a function to run");
  return std::make_shared<NnStageModule>(std::move(owner), std::move(forward), keywords);
}

namespace detail {

const std::set<std::string>& no_keywords() {
  static const std::set<std::string> none;
  return none;
}

void wrong_argument_count(std::size_t given, std::size_t wanted) {
  throw UsageError("the stage's forward takes " + std::to_string(wanted) + " arguments and was given " +
                       std::to_string(given),
                   {}, "the items of the previous stage's output tuple are this stage's arguments");
}

}  // namespace detail
}  // namespace penstock
