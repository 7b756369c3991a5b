// A world of thread ranks in which one pair of ranks is disconnected: messages between the two are dropped,
// while all other messages and all collectives arrive. Groups split from the given one have the same fault.
#pragma once

#include <penstock/comm/group.h>

#include <memory>

namespace penstock::test {

class DisconnectedPair {
 public:
  //! `one` and `other` are world ranks.
  DisconnectedPair(int one, int other);
  ~DisconnectedPair();
  DisconnectedPair(const DisconnectedPair&) = delete;
  DisconnectedPair& operator=(const DisconnectedPair&) = delete;

  //! A group with the same members as `group`; a collective call.
  comm::Group group(const comm::Group& group) const;

 private:
  struct Hub;
  std::shared_ptr<Hub> hub_;
};

}  // namespace penstock::test
