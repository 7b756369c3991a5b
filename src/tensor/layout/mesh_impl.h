// The state behind a DeviceMesh handle.
#pragma once

#include <penstock/tensor/mesh.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tensor {

struct DeviceMesh::Impl {
  std::vector<std::int64_t> shape;
  std::vector<std::string> names;
  std::vector<std::int64_t> coordinate;
  std::vector<Rank> ranks;
  std::vector<comm::Group> groups;  //!< one per axis
  std::optional<comm::Group> all;

  // Random generator of this mesh: the next draw is number `draws` of seed `seed`.
  std::atomic<std::uint64_t> seed{0};
  std::atomic<std::uint64_t> draws{0};

  std::mutex mutex;  //!< guards `subs`
  std::map<std::vector<std::string>, std::shared_ptr<DeviceMesh::Impl>> subs;
};

//! Access to the private parts of DeviceMesh, for the library and its tests.
struct Access {
  static DeviceMesh mesh(std::shared_ptr<DeviceMesh::Impl> impl) { return DeviceMesh(std::move(impl)); }
  static const std::shared_ptr<DeviceMesh::Impl>& impl(const DeviceMesh& mesh) { return mesh.impl_; }
};

}  // namespace penstock::tensor
