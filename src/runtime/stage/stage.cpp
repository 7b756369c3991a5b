// Construction of a stage: checks its index and moves its module to its device.
#include "base/text.h"
#include "comm/world/rank_device.h"
#include "value/tensor_storage.h"

#include <penstock/base/error.h>
#include <penstock/runtime/stage.h>

#include <ATen/ops/empty_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace penstock::runtime {
namespace {

bool on_meta(const StageModule& module) {
  for (const auto& list : {module.parameters(), module.buffers()}) {
    for (const value::NamedTensor& item : list) {
      if (item.tensor.is_meta()) return true;
    }
  }
  return false;
}

// A device without an index is the current one of the thread, which `init` sets. Throws UsageError if there
// is no such device.
at::Device available_device(at::Device device) {
  if (device.is_cpu() || device.is_meta()) return device;
  const bool has = c10::impl::hasDeviceGuardImpl(device.type());
  const auto* const guard = has ? c10::impl::getDeviceGuardImpl(device.type()) : nullptr;
  const int current = guard != nullptr && guard->deviceCount() > 0 ? guard->getDevice().index() : 0;
  return comm::resolve_device(device, current);
}

// Meta tensors cannot be moved, only allocated. The initializer fills in their values.
void materialize(const StageModule& module, at::Device device) {
  for (const auto& list : {module.parameters(), module.buffers()}) {
    for (const value::NamedTensor& item : list) {
      if (!item.tensor.is_meta() || device.is_meta()) continue;
      value::TensorStorage::replace(
          item.tensor, at::empty_like(item.tensor.detach(), item.tensor.options().device(device)));
    }
  }
}

}  // namespace

PipelineStage::PipelineStage(std::shared_ptr<StageModule> module, StageId stage, int num_stages,
                             at::Device requested, comm::Group group, StageOptions options) {
  ErrorContext context;
  context.stage = stage;
  if (!module) throw UsageError("a stage needs a module", context);
  if (num_stages < 1 || stage.value < 0 || stage.value >= num_stages) {
    throw UsageError(str_cat("there is no stage ", stage.value, " in a pipeline of ", num_stages, " stages"),
                     {}, "stages are counted from 0");
  }
  const at::Device device = available_device(requested);
  if (on_meta(*module)) {
    if (!options.initialize) {
      throw UsageError("the module has tensors on the meta device, which hold no values", context,
                       "set StageOptions::initialize, which fills them after they are allocated");
    }
    materialize(*module, device);
    options.initialize();
  }
  module->to(device);
  std::vector<tensor::DeviceMesh> meshes = module->meshes();
  if (options.mesh) meshes.insert(meshes.begin(), *options.mesh);
  impl_ = std::make_shared<Impl>(Impl{std::move(module), stage, num_stages, device, std::move(group),
                                      std::move(options), std::move(meshes)});
}

at::Tensor PipelineStage::parameter(const std::string& name) const {
  std::vector<std::string> names;
  for (const value::NamedTensor& item : module().parameters()) {
    if (item.name == name) return item.tensor;
    names.push_back(item.name);
  }
  ErrorContext context;
  context.stage = index();
  throw UsageError("the stage has no parameter " + quote(name), context, did_you_mean(name, names));
}

}  // namespace penstock::runtime
