// Kills ranks of a training pipeline at random actions: the others must raise PeerFailed, naming the rank,
// within 5 s.
#pragma once

#include <cstdint>

namespace penstock::test {

void kill_at_random(int times, std::uint64_t seed);

}  // namespace penstock::test
