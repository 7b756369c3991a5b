// Meshes: the grid, its groups and its sub-meshes.
#include "base/text.h"
#include "tensor/dispatch/kernels.h"
#include "tensor/layout/mesh_impl.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace penstock::tensor {
namespace {

std::int64_t product(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{1}, std::multiplies<>());
}

//! Copies the groups of axes with the same names, for the mesh and all its sub-meshes.
void take_groups(DeviceMesh::Impl& mesh, const DeviceMesh::Impl& from) {
  const std::lock_guard lock(mesh.mutex);
  for (std::size_t axis = 0; axis < mesh.names.size(); ++axis) {
    const auto found = std::find(from.names.begin(), from.names.end(), mesh.names[axis]);
    mesh.groups[axis] = from.groups[static_cast<std::size_t>(found - from.names.begin())];
  }
  for (const auto& [names, part] : mesh.subs) take_groups(*part, from);
}

}  // namespace

DeviceMesh::DeviceMesh(const comm::Group& group, std::vector<std::int64_t> shape,
                       std::vector<std::string> names)
    : impl_(std::make_shared<DeviceMesh::Impl>()) {
  register_kernels();
  if (names.empty()) {
    for (std::size_t i = 0; i < shape.size(); ++i) names.push_back(str_cat("axis", i));
  }
  if (names.size() != shape.size()) {
    throw UsageError(str_cat("a mesh with ", shape.size(), " axes got ", names.size(), " names"));
  }
  auto sorted = names;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw UsageError("two axes of the mesh have the same name: " + join(names, ", "));
  }
  const bool positive = std::all_of(shape.begin(), shape.end(), [](std::int64_t n) { return n > 0; });
  if (shape.empty() || !positive || product(shape) != group.size()) {
    throw UsageError(str_cat("a mesh with shape ", join(shape, " x "), " does not match the ", group.size(),
                             " ranks of group ", group.name()),
                     {}, "the product of the axis sizes must equal the number of ranks");
  }
  impl_->shape = std::move(shape);
  impl_->names = std::move(names);
  impl_->all = group;
  for (int member = 0; member < group.size(); ++member) impl_->ranks.push_back(group.global_rank(member));

  impl_->coordinate.resize(impl_->shape.size());
  std::int64_t rest = group.rank();
  for (std::size_t i = impl_->shape.size(); i-- > 0;) {
    impl_->coordinate[i] = rest % impl_->shape[i];
    rest /= impl_->shape[i];
  }
  // The group of an axis: all ranks that agree with this one on the other axes.
  for (std::size_t axis = 0; axis < impl_->shape.size(); ++axis) {
    if (impl_->shape[axis] == group.size()) {
      impl_->groups.push_back(group);
      continue;
    }
    std::int64_t color = 0;
    for (std::size_t i = 0; i < impl_->shape.size(); ++i) {
      if (i != axis) color = color * impl_->shape[i] + impl_->coordinate[i];
    }
    impl_->groups.push_back(*group.split(static_cast<int>(color), static_cast<int>(impl_->coordinate[axis])));
  }
}

int DeviceMesh::ndim() const {
  return static_cast<int>(impl_->shape.size());
}
std::int64_t DeviceMesh::size() const {
  return product(impl_->shape);
}
std::int64_t DeviceMesh::size(int axis) const {
  return impl_->shape.at(static_cast<std::size_t>(axis));
}
const std::vector<std::int64_t>& DeviceMesh::shape() const {
  return impl_->shape;
}
const std::vector<std::string>& DeviceMesh::names() const {
  return impl_->names;
}
const std::vector<Rank>& DeviceMesh::ranks() const {
  return impl_->ranks;
}

int DeviceMesh::axis(std::string_view name) const {
  const auto found = std::find(impl_->names.begin(), impl_->names.end(), name);
  if (found != impl_->names.end()) return static_cast<int>(found - impl_->names.begin());
  throw UsageError(to_string(*this) + " has no axis " + quote(name), {}, did_you_mean(name, impl_->names));
}

std::int64_t DeviceMesh::coordinate(int axis) const {
  return impl_->coordinate.at(static_cast<std::size_t>(axis));
}

const comm::Group& DeviceMesh::group(int axis) const {
  return impl_->groups.at(static_cast<std::size_t>(axis));
}

const comm::Group& DeviceMesh::all() const {
  if (ndim() == 1) return impl_->groups[0];
  if (impl_->all) return *impl_->all;
  throw UsageError("a sub-mesh with several axes has no group that spans all its ranks", {},
                   "construct a mesh from a group of these ranks");
}

DeviceMesh DeviceMesh::sub(const std::vector<std::string>& names) const {
  if (names == impl_->names) return *this;
  if (names.empty()) throw UsageError("a sub-mesh needs at least one axis");
  const std::lock_guard lock(impl_->mutex);
  std::shared_ptr<DeviceMesh::Impl>& found = impl_->subs[names];
  if (found) return DeviceMesh(found);
  auto result = std::make_shared<DeviceMesh::Impl>();
  std::vector<int> axes;
  for (const std::string& name : names) {
    const int from = axis(name);
    if (std::find(axes.begin(), axes.end(), from) != axes.end())
      throw UsageError("axis " + quote(name) + " is listed twice");
    axes.push_back(from);
    result->names.push_back(name);
    result->shape.push_back(size(from));
    result->coordinate.push_back(coordinate(from));
    result->groups.push_back(group(from));
  }
  result->seed = impl_->seed.load();
  for (std::int64_t i = 0; i < product(result->shape); ++i) {
    // Position i of the sub-mesh, with this rank's coordinates on the other axes.
    auto at = impl_->coordinate;
    std::int64_t rest = i;
    for (std::size_t k = axes.size(); k-- > 0;) {
      at[static_cast<std::size_t>(axes[k])] = rest % result->shape[k];
      rest /= result->shape[k];
    }
    std::int64_t linear = 0;
    for (std::size_t k = 0; k < at.size(); ++k) linear = linear * impl_->shape[k] + at[k];
    result->ranks.push_back(impl_->ranks[static_cast<std::size_t>(linear)]);
  }
  found = result;
  return DeviceMesh(result);
}

DeviceMesh DeviceMesh::flatten(const std::string& name) const {
  return DeviceMesh(all(), {size()}, {name});
}

void DeviceMesh::manual_seed(std::uint64_t seed) {
  impl_->seed = seed;
  impl_->draws = 0;
}

void DeviceMesh::recover(const comm::Group& group) {
  const DeviceMesh fresh(group, impl_->shape, impl_->names);
  if (fresh.impl_->coordinate != impl_->coordinate)
    throw UsageError("a mesh can only recover with its ranks in the same order", {},
                     "pass the group of the rebuilt world, or the same split of it");
  impl_->all = group;
  take_groups(*impl_, *fresh.impl_);
}

std::string to_string(const DeviceMesh& mesh) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < mesh.names().size(); ++i) {
    parts.push_back(str_cat(mesh.names()[i], "=", mesh.shape()[i]));
  }
  return "DeviceMesh(" + join(parts, ", ") + ")";
}

bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
  return a.impl_ == b.impl_ || (a.impl_->shape == b.impl_->shape && a.impl_->ranks == b.impl_->ranks);
}

}  // namespace penstock::tensor
