// A world of thread ranks in which one pair of ranks cannot talk: messages between the two are lost, all
// others and all collectives arrive. Groups that are split off the given one have the same fault.
#pragma once

#include <penstock/comm/group.h>

#include <memory>

namespace penstock::test {

class DeafPair {
 public:
  //! Ranks of the world.
  DeafPair(int one, int other);
  ~DeafPair();
  DeafPair(const DeafPair&) = delete;
  DeafPair& operator=(const DeafPair&) = delete;

  //! The same members as `group` has; called by all of them.
  comm::Group group(const comm::Group& group) const;

 private:
  struct Hub;
  std::shared_ptr<Hub> hub_;
};

}  // namespace penstock::test
