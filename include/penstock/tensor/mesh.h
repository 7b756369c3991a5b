// A device mesh: the ranks of a group in a grid with named axes, with one group per axis. Every rank has its
// own object. Construction is collective.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/comm/group.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::tensor {

//! A handle: copies and repeated lookups of a sub-mesh refer to the same mesh.
class DeviceMesh {
 public:
  struct Impl;

  //! Arranges all ranks of `group` in a grid; the last axis varies fastest. Every rank of the group must call
  //! it.
  DeviceMesh(const comm::Group& group, std::vector<std::int64_t> shape, std::vector<std::string> names = {});

  //! The number of axes.
  int ndim() const;
  //! The number of ranks.
  std::int64_t size() const;
  //! The number of ranks along an axis.
  std::int64_t size(int axis) const;
  //! The size of each axis.
  const std::vector<std::int64_t>& shape() const;
  //! The name of each axis.
  const std::vector<std::string>& names() const;
  //! The index of the axis with this name. Throws UsageError with the closest name if there is none.
  int axis(std::string_view name) const;

  //! The position of this rank on an axis.
  std::int64_t coordinate(int axis) const;
  //! World ranks of all positions of the mesh; the last axis varies fastest.
  const std::vector<Rank>& ranks() const;

  //! The group of ranks that differ from this one only on that axis.
  const comm::Group& group(int axis) const;
  const comm::Group& group(std::string_view name) const { return group(axis(name)); }
  //! The group of all ranks, for a mesh constructed from a group; not available for a sub-mesh with several
  //! axes.
  const comm::Group& all() const;

  //! The sub-mesh that contains this rank and spans the named axes, in that order. No communication; repeated
  //! calls return the same mesh.
  DeviceMesh operator[](const std::string& name) const { return sub({name}); }
  DeviceMesh sub(const std::vector<std::string>& names) const;
  //! A mesh with one axis, named `name`, over all ranks of this mesh. Every rank of the mesh must call it.
  DeviceMesh flatten(const std::string& name) const;

  //! Seeds random operations on tensors of this mesh. The seed must be the same on every rank.
  void manual_seed(std::uint64_t seed);

  //! Attaches the mesh to a new group after a failure. The group must have as many ranks, in the same order.
  //! Tensors on this mesh and its sub-meshes stay valid. Every rank of the group must call it.
  void recover(const comm::Group& group);

  //! Whether both have the same ranks in the same grid.
  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b);

 private:
  friend struct Access;
  explicit DeviceMesh(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<Impl> impl_;
};

//! `DeviceMesh(dp=2, tp=4)`.
std::string to_string(const DeviceMesh& mesh);

}  // namespace penstock::tensor
