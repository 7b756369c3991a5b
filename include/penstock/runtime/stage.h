// One stage of a pipeline: a module, its index and its device. PipelineStage is a handle: copies share the
// module. It holds no state of a running step.
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

namespace penstock::runtime {

//! Options of a stage.
struct StageOptions {
  //! Expected metadata of the input and output of every microbatch. If set, a mismatch is a ShapeError.
  std::optional<value::TreeMeta> input{};
  std::optional<value::TreeMeta> output{};
  //! Initializes parameters and buffers that were on the meta device, after memory on the stage's device was
  //! allocated for them. Without it, a module with meta tensors is a UsageError.
  std::function<void()> initialize{};
  //! For modules that compute their weight gradients themselves (`dw_builder` in `torch.distributed`): called
  //! after each I, returns the function that the W of the same microbatch runs.
  std::function<std::function<void()>()> weight_work{};
  //! Keep only the inputs of each microbatch and run its forward pass again before its backward pass.
  bool recompute = false;
  //! The mesh on which received distributed values are rebuilt. Needed only if the stage has no distributed
  //! parameters on such a mesh.
  std::optional<tensor::DeviceMesh> mesh{};
};

//! A stage of this rank: a module, its index in the pipeline and its device.
class PipelineStage {
 public:
  //! Moves the module to `device`, in place. A device without an index is the current one, which `init` sets.
  //! Throws UsageError if `stage` is not in 0 … num_stages-1, or if there is no such device.
  PipelineStage(std::shared_ptr<StageModule> module, StageId stage, int num_stages, at::Device device,
                comm::Group group, StageOptions options = {});

  //! Overload for a torch::nn module, given as a shared_ptr or a holder.
  template <UnwrappedModule Module>
  PipelineStage(const Module& module, StageId stage, int num_stages, at::Device device, comm::Group group,
                StageOptions options = {})
      : PipelineStage(make_stage_module(module), stage, num_stages, device, std::move(group),
                      std::move(options)) {}

  StageId index() const { return impl_->index; }
  int num_stages() const { return impl_->num_stages; }
  bool is_first() const { return index().value == 0; }
  bool is_last() const { return index().value == num_stages() - 1; }
  at::Device device() const { return impl_->device; }
  //! The ranks of the pipeline.
  const comm::Group& group() const { return impl_->group; }
  //! The module that the stage runs.
  StageModule& module() const { return *impl_->module; }
  //! Sets the module to training mode, or to evaluation mode if `on` is false.
  void train(bool on = true) { module().train(on); }
  void eval() { train(false); }
  bool is_training() const { return module().is_training(); }
  const StageOptions& options() const { return impl_->options; }
  //! The meshes on which distributed values can be received: StageOptions::mesh and those of the parameters.
  const std::vector<tensor::DeviceMesh>& meshes() const { return impl_->meshes; }
  //! The parameter with this name. UsageError, with the closest existing name, if there is none.
  at::Tensor parameter(const std::string& name) const;

 private:
  struct Impl {
    std::shared_ptr<StageModule> module;
    StageId index;
    int num_stages;
    at::Device device;
    comm::Group group;
    StageOptions options;
    std::vector<tensor::DeviceMesh> meshes;
  };
  std::shared_ptr<const Impl> impl_;
};

}  // namespace penstock::runtime
