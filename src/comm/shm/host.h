// Finds the ranks on this host and connects them through shared memory.
#pragma once

#include "comm/shm/link.h"
#include "comm/world/generation.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <map>
#include <memory>
#include <string>

namespace penstock::comm::shm {

//! The ranks of this host.
struct Host {
  std::shared_ptr<Link> link;  //!< null if this is the only rank, or if shared memory cannot be used
  std::map<int, int> index;    //!< of a world rank on the host
  bool direct = false;         //!< ranks can read each other's memory
  std::string problem;         //!< why shared memory cannot be used, if it cannot
};

//! What identifies a host in the store: ranks with the same identity can share memory.
std::string host_identity();

//! Announces this rank. All ranks must do so before any of them connects.
void announce_on_host(c10d::Store& store, const std::string& prefix, Rank rank);

//! Connects the ranks of this host. They agree: if one of them cannot map the memory of another, none uses
//! shared memory, and `problem` says why.
Host connect_host(c10d::Store& store, WorldGeneration& generation, const std::string& prefix, int world_size,
                  std::chrono::milliseconds limit);

//! The capacity of a ring: PENSTOCK_SHM_BYTES, 32 MiB if unset, is divided among the pairs of ranks.
std::size_t ring_capacity(std::size_t ranks);

//! Whether ranks may read each other's memory: unless PENSTOCK_SHM_DIRECT is 0.
bool direct_reads_allowed();

}  // namespace penstock::comm::shm
