// Groups that need fewer connections than a group of `Group::split`: a communicator of NCCL costs memory of
// the device and threads.
#pragma once

#include <penstock/comm/group.h>

namespace penstock::comm {

//! What device tensors do in a group. Every group has objects, CPU tensors and barriers.
enum class GroupUse {
  Everything,
  Transfers,  //!< they are sent and received; collectives of them throw UsageError over NCCL
  Objects,    //!< nothing; if they are used anyway, they may take a detour through host memory
};

//! A new group of the same ranks, with messages of its own. Every rank of the group must call it.
Group duplicate(const Group& group, GroupUse use);

}  // namespace penstock::comm
