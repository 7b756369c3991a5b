// Meshes: the grid, its groups and its sub-meshes.
#include "tensor/dispatch/kernels.h"
#include "tensor/layout/mesh_state.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace penstock::tensor {
namespace {

std::int64_t product(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{1}, std::multiplies<>());
}

//! Copies the groups of axes with the same names, for the mesh and all its sub-meshes.
void take_groups(MeshState& mesh, const MeshState& from) {
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
    : state_(std::make_shared<MeshState>()) {
  register_kernels();
  if (names.empty()) {
    for (std::size_t i = 0; i < shape.size(); ++i) names.push_back("axis" + std::to_string(i));
  }
  if (names.size() != shape.size()) {
    throw UsageError("a mesh with " + std::to_string(shape.size()) + " axes got " +
                     std::to_string(names.size()) + " names");
  }
  auto sorted = names;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw UsageError("two axes of the mesh have the same name: " + join(names, ", "));
  }
  const bool positive = std::all_of(shape.begin(), shape.end(), [](std::int64_t n) { return n > 0; });
  if (shape.empty() || !positive || product(shape) != group.size()) {
    throw UsageError("a mesh with shape " + join(shape, " x ") + " does not match the " +
                         std::to_string(group.size()) + " ranks of group " + group.name(),
                     {}, "the product of the axis sizes must equal the number of ranks");
  }
  state_->shape = std::move(shape);
  state_->names = std::move(names);
  state_->all = group;
  for (int member = 0; member < group.size(); ++member)
    state_->ranks.push_back(group.global_rank(member).value);

  state_->coordinate.resize(state_->shape.size());
  std::int64_t rest = group.rank();
  for (std::size_t i = state_->shape.size(); i-- > 0;) {
    state_->coordinate[i] = rest % state_->shape[i];
    rest /= state_->shape[i];
  }
  // The group of an axis: all ranks that agree with this one on the other axes.
  for (std::size_t axis = 0; axis < state_->shape.size(); ++axis) {
    if (state_->shape[axis] == group.size()) {
      state_->groups.push_back(group);
      continue;
    }
    std::int64_t color = 0;
    for (std::size_t i = 0; i < state_->shape.size(); ++i) {
      if (i != axis) color = color * state_->shape[i] + state_->coordinate[i];
    }
    state_->groups.push_back(
        *group.split(static_cast<int>(color), static_cast<int>(state_->coordinate[axis])));
  }
}

int DeviceMesh::ndim() const {
  return static_cast<int>(state_->shape.size());
}
std::int64_t DeviceMesh::size() const {
  return product(state_->shape);
}
std::int64_t DeviceMesh::size(int axis) const {
  return state_->shape.at(static_cast<std::size_t>(axis));
}
const std::vector<std::int64_t>& DeviceMesh::shape() const {
  return state_->shape;
}
const std::vector<std::string>& DeviceMesh::names() const {
  return state_->names;
}
const std::vector<int>& DeviceMesh::ranks() const {
  return state_->ranks;
}

int DeviceMesh::axis(std::string_view name) const {
  const auto found = std::find(state_->names.begin(), state_->names.end(), name);
  if (found != state_->names.end()) return static_cast<int>(found - state_->names.begin());
  throw UsageError(text() + " has no axis " + quote(name), {}, did_you_mean(name, state_->names));
}

std::int64_t DeviceMesh::coordinate(int axis) const {
  return state_->coordinate.at(static_cast<std::size_t>(axis));
}

const comm::Group& DeviceMesh::group(int axis) const {
  return state_->groups.at(static_cast<std::size_t>(axis));
}

const comm::Group& DeviceMesh::all() const {
  if (ndim() == 1) return state_->groups[0];
  if (state_->all) return *state_->all;
  throw UsageError("this sub-mesh has no group of all its ranks", {},
                   "construct a mesh from a group of these ranks");
}

DeviceMesh DeviceMesh::sub(const std::vector<std::string>& names) const {
  if (names == state_->names) return *this;
  if (names.empty()) throw UsageError("a sub-mesh needs at least one axis");
  const std::lock_guard lock(state_->mutex);
  std::shared_ptr<MeshState>& found = state_->subs[names];
  if (found) return DeviceMesh(found);
  auto part = std::make_shared<MeshState>();
  std::vector<int> axes;
  for (const std::string& name : names) {
    const int from = axis(name);
    if (std::find(axes.begin(), axes.end(), from) != axes.end())
      throw UsageError("axis " + quote(name) + " is listed twice");
    axes.push_back(from);
    part->names.push_back(name);
    part->shape.push_back(size(from));
    part->coordinate.push_back(coordinate(from));
    part->groups.push_back(group(from));
  }
  part->seed = state_->seed.load();
  for (std::int64_t i = 0; i < product(part->shape); ++i) {
    // Position i of the sub-mesh, with this rank's coordinates on the other axes.
    auto at = state_->coordinate;
    std::int64_t rest = i;
    for (std::size_t k = axes.size(); k-- > 0;) {
      at[static_cast<std::size_t>(axes[k])] = rest % part->shape[k];
      rest /= part->shape[k];
    }
    std::int64_t linear = 0;
    for (std::size_t k = 0; k < at.size(); ++k) linear = linear * state_->shape[k] + at[k];
    part->ranks.push_back(state_->ranks[static_cast<std::size_t>(linear)]);
  }
  found = part;
  return DeviceMesh(part);
}

DeviceMesh DeviceMesh::flatten(const std::string& name) const {
  return DeviceMesh(all(), {size()}, {name});
}

void DeviceMesh::manual_seed(std::uint64_t seed) const {
  state_->seed = seed;
  state_->draws = 0;
}

void DeviceMesh::recover(const comm::Group& group) const {
  const DeviceMesh fresh(group, state_->shape, state_->names);
  if (fresh.state_->coordinate != state_->coordinate)
    throw UsageError("a mesh can only recover with its ranks in the same order");
  state_->all = group;
  take_groups(*state_, *fresh.state_);
}

std::string DeviceMesh::text() const {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < state_->names.size(); ++i) {
    parts.push_back(state_->names[i] + "=" + std::to_string(state_->shape[i]));
  }
  return "DeviceMesh(" + join(parts, ", ") + ")";
}

bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
  return a.state_ == b.state_ || (a.state_->shape == b.state_->shape && a.state_->ranks == b.state_->ranks);
}

}  // namespace penstock::tensor
