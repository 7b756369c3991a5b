// Groups over shared memory, for the ranks of one host. Ranks of different hosts communicate over Gloo.
#pragma once

#include "comm/shm/host.h"
#include "comm/world/generation.h"

#include <memory>

namespace penstock::comm {

//! `gloo` connects what shared memory does not.
std::shared_ptr<Transport> make_shm_transport(shm::Host host, std::shared_ptr<Transport> gloo);

}  // namespace penstock::comm
