// The errors of thread ranks, as strings.
#pragma once

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>

#include <functional>
#include <string>
#include <vector>

namespace penstock::test {

//! The message that `body` threw on each rank; empty if it threw nothing.
inline std::vector<std::string> errors_of(int ranks, const std::function<void(comm::World&)>& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  comm::run_thread_ranks(ranks, [&](comm::World& world) {
    try {
      body(world);
    } catch (const Error& e) {
      texts[world.rank().index()] = e.what();
    }
  });
  return texts;
}

}  // namespace penstock::test
