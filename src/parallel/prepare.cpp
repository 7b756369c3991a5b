// Moving one argument or result.
#include "parallel/prepare.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>

#include <algorithm>

namespace penstock {

at::Tensor prepared_argument(const at::Tensor& tensor, std::size_t index, const DeviceMesh& mesh,
                             const PrepareModuleInput& style) {
  if (!tensor.defined() || index >= style.wanted.size() || !style.wanted[index]) return tensor;
  at::Tensor here = tensor;
  if (!is_dtensor(here)) {
    const bool said = index < style.given.size() && style.given[index];
    here = from_local(here, mesh, {said ? *style.given[index] : AxisPlacement(Replicate())});
  }
  return redistribute(here, {*style.wanted[index]});
}

at::Tensor prepared_result(const at::Tensor& tensor, const PrepareModuleOutput& style) {
  if (!is_dtensor(tensor)) return tensor;
  const at::Tensor moved = redistribute(tensor, {style.wanted});
  return style.use_local_output ? to_local(moved) : moved;
}

void check_one_axis(const DeviceMesh& mesh) {
  if (mesh.ndim() == 1) return;
  throw UsageError("parallelize_module needs a mesh of one axis, not " + mesh.text(), {},
                   "take the axis of tensor parallelism: mesh[\"tp\"]");
}

void refuse_path(const std::string& pattern, const std::vector<std::string>& paths) {
  const std::string near = nearest(pattern, paths);
  constexpr std::size_t shown = 8;
  std::vector<std::string> first(paths.begin(), paths.begin() + std::min(shown, paths.size()));
  if (paths.size() > shown) first.emplace_back("…");
  throw UsageError(
      "no module has the path " + quote(pattern), {},
      near.empty() ? "the modules are " + join(first, ", ") : "did you mean " + quote(near) + "?");
}

}  // namespace penstock
