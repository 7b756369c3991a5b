// One stage of a pipeline: a module, its index, its device. A handle: copies share the module. What a step
// needs lives in the step.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/comm/group.h>
#include <penstock/runtime/stage_module.h>
#include <penstock/tensor/mesh.h>
#include <penstock/value/tensor_meta.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace penstock {

struct StageOptions {
  //! What every microbatch must bring and give; checked, if given, with a ShapeError for what differs.
  std::optional<TreeMeta> input;
  std::optional<TreeMeta> output;
  //! Fills parameters and buffers that are still on the meta device, once they have memory on the stage's
  //! device. Without it such a module is a UsageError.
  std::function<void()> initialise;
  //! Modules that keep the work for their weights themselves (the reference's `dw_builder`): called after
  //! each I, gives the function that the W of that microbatch runs.
  std::function<std::function<void()>()> weight_work;
  //! Keep only the inputs of each microbatch, and run its forward again when its backward comes.
  bool recompute = false;
  //! Where distributed values that arrive are put together, for a stage without distributed parameters on
  //! such a mesh.
  std::optional<DeviceMesh> mesh;
};

class PipelineStage {
 public:
  //! Moves the module to `device`, in place. UsageError for a stage that is not within 0 … num_stages-1.
  PipelineStage(std::shared_ptr<StageModule> module, int stage_index, int num_stages, at::Device device,
                Group group, StageOptions options = {});

  //! The same from a torch::nn module, by shared_ptr or holder.
  template <class Module>
  requires(!std::is_convertible_v<Module, std::shared_ptr<StageModule>>)
      PipelineStage(const Module& module, int stage_index, int num_stages, at::Device device, Group group,
                    StageOptions options = {})
      : PipelineStage(make_stage_module(module), stage_index, num_stages, device, std::move(group),
                      std::move(options)) {}

  StageId index() const { return content_->index; }
  int num_stages() const { return content_->num_stages; }
  bool is_first() const { return index().value == 0; }
  bool is_last() const { return index().value == num_stages() - 1; }
  at::Device device() const { return content_->device; }
  const Group& group() const { return content_->group; }
  StageModule& module() const { return *content_->module; }
  //! Switches the module between training mode and evaluation mode.
  void train(bool on = true) { module().train(on); }
  void eval() { train(false); }
  bool is_training() const { return module().is_training(); }
  const StageOptions& options() const { return content_->options; }
  //! The meshes that distributed values can arrive on: the options' own, and those of the parameters.
  const std::vector<DeviceMesh>& meshes() const { return content_->meshes; }
  //! The parameter of this name; UsageError names the nearest one there is.
  at::Tensor parameter(const std::string& name) const;

 private:
  struct Content {
    std::shared_ptr<StageModule> module;
    StageId index;
    int num_stages;
    at::Device device;
    Group group;
    StageOptions options;
    std::vector<DeviceMesh> meshes;
  };
  std::shared_ptr<const Content> content_;
};

}  // namespace penstock
