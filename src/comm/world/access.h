// Access to the private parts of the handles of this module, for the library and its tests.
#pragma once

#include <penstock/comm/world.h>

#include <memory>
#include <utility>

namespace penstock::comm {

struct Access {
  static Group group(std::shared_ptr<Group::Impl> impl) { return Group(std::move(impl)); }
  static Work work(std::shared_ptr<Work::Impl> impl) { return Work(std::move(impl)); }
  static World world(std::unique_ptr<World::Impl> impl);

  static const std::shared_ptr<Group::Impl>& impl(const Group& group) { return group.impl_; }
};

}  // namespace penstock::comm
