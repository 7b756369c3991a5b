// Redistributes single arguments and results.
#include "parallel/tensor/prepare.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <cstddef>

namespace penstock::parallel {

at::Tensor prepared_argument(const at::Tensor& tensor, std::size_t index, const tensor::DeviceMesh& mesh,
                             const PrepareModuleInput& style) {
  if (!tensor.defined() || index >= style.desired.size() || !style.desired[index]) return tensor;
  at::Tensor here = tensor;
  if (!tensor::is_dtensor(here)) {
    const bool said = index < style.assumed.size() && style.assumed[index];
    here =
        from_local(here, mesh, {said ? *style.assumed[index] : tensor::AxisPlacement(tensor::Replicate())});
  }
  return tensor::redistribute(here, {*style.desired[index]});
}

at::Tensor prepared_result(const at::Tensor& tensor, std::size_t index, const tensor::DeviceMesh& mesh,
                           const PrepareModuleOutput& style) {
  const std::optional<tensor::AxisPlacement> desired = style.desired.of(index);
  if (!tensor.defined() || !desired) return tensor;
  at::Tensor here = tensor;
  if (!tensor::is_dtensor(here)) {
    const tensor::AxisPlacement assumed = style.assumed.of(index).value_or(tensor::Replicate());
    if (style.use_local_output && assumed == *desired) return tensor;
    here = from_local(here, mesh, {assumed});
  }
  const at::Tensor moved = tensor::redistribute(here, {*desired});
  return style.use_local_output ? tensor::to_local(moved) : moved;
}

void check_arguments(const PrepareModuleInput& style, std::size_t count, const std::string& module) {
  const auto refuse = [&](const char* list, std::size_t size) {
    throw UsageError(str_cat("PrepareModuleInput of module ", quote(module), " has ", size, " entries in `",
                             list, "`, but the call has ", count, " arguments"),
                     {}, "pass one entry per argument, std::nullopt to leave it unchanged");
  };
  if (style.desired.size() != count) refuse("desired", style.desired.size());
  if (!style.assumed.empty() && style.assumed.size() != count) refuse("assumed", style.assumed.size());
}

void check_results(const PrepareModuleOutput& style, std::size_t count, const std::string& module) {
  const auto check = [&](const char* list, const ResultPlacements& placements) {
    if (!placements.count() || *placements.count() == count) return;
    throw UsageError(str_cat("PrepareModuleOutput of module ", quote(module), " has ", *placements.count(),
                             " entries in `", list, "`, but the result has ", count, " tensors"),
                     {}, "pass one entry per tensor, std::nullopt to leave it unchanged");
  };
  check("desired", style.desired);
  check("assumed", style.assumed);
}

void check_one_axis(const tensor::DeviceMesh& mesh) {
  if (mesh.ndim() == 1) return;
  throw UsageError("parallelize_module needs a mesh with one axis, not " + to_string(mesh), {},
                   "pass the tensor-parallel axis: mesh[\"tp\"]");
}

void refuse_path(const std::string& pattern, const std::vector<std::string>& paths) {
  constexpr std::size_t shown = 8;
  std::vector<std::string> first(paths.begin(),
                                 paths.begin() + static_cast<std::ptrdiff_t>(std::min(shown, paths.size())));
  if (paths.size() > shown) first.emplace_back("…");
  throw UsageError("no module has the path " + quote(pattern), {},
                   did_you_mean(pattern, paths, "the modules are " + join(first, ", ")));
}

}  // namespace penstock::parallel
