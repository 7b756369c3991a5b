// A device mesh: the ranks of a group in a grid with named axes, and a group for each axis. Every rank has
// its own object; making one is collective.
#pragma once

#include <penstock/comm/group.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct MeshState;

class DeviceMesh {
 public:
  //! A grid of all ranks of `group`, the last axis fastest. Every rank of the group must call it.
  DeviceMesh(const Group& group, std::vector<std::int64_t> shape, std::vector<std::string> names = {});
  explicit DeviceMesh(std::shared_ptr<MeshState> state) : state_(std::move(state)) {}

  int ndim() const;
  std::int64_t size() const;
  std::int64_t size(int axis) const;
  const std::vector<std::int64_t>& shape() const;
  const std::vector<std::string>& names() const;
  //! The axis of this name (UsageError, with the nearest name, if there is none).
  int axis(std::string_view name) const;

  //! Where this rank stands on an axis.
  std::int64_t coordinate(int axis) const;
  //! World ranks of the whole mesh, the last axis fastest.
  const std::vector<int>& ranks() const;

  //! The ranks that differ from this one on that axis only.
  const Group& group(int axis) const;
  const Group& group(std::string_view name) const { return group(axis(name)); }
  //! All ranks of a mesh that was made from a group (not of a sub-mesh with several axes).
  const Group& all() const;

  //! The part of the mesh that this rank reaches over the named axes, in that order. No communication; asking
  //! twice gives the same mesh.
  DeviceMesh operator[](const std::string& name) const { return sub({name}); }
  DeviceMesh sub(const std::vector<std::string>& names) const;
  //! One axis of all ranks of the mesh, under a new name. Every rank of the mesh must call it.
  DeviceMesh flatten(const std::string& name) const;

  //! Random operations on tensors of this mesh continue from this seed; the same on every rank.
  void manual_seed(std::uint64_t seed) const;

  //! After a failure and a rebuilt world: the same grid over a new group of as many ranks in the same order.
  //! Tensors on this mesh and on its parts go on with it. Every rank of the group must call it.
  void recover(const Group& group) const;

  //! `DeviceMesh(dp=2, tp=4)`.
  std::string text() const;

  //! Whether they are the same ranks in the same grid.
  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b);

  const std::shared_ptr<MeshState>& state() const { return state_; }

 private:
  std::shared_ptr<MeshState> state_;
};

}  // namespace penstock
