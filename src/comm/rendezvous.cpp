// The rendezvous of a group's members.
#include "comm/rendezvous.h"

#include <penstock/base/text.h>

#include <thread>

namespace penstock {

void await_members(c10d::Store& store, Domain& domain, const std::string& key, const std::vector<int>& members,
                   std::chrono::milliseconds limit) {
  const auto key_of = [&key](int member) { return key + "/here/" + std::to_string(member); };
  store.set(key_of(domain.rank.value), std::vector<std::uint8_t>{1});
  const auto deadline = std::chrono::steady_clock::now() + limit;
  auto pause = std::chrono::milliseconds(1);
  std::vector<int> missing = members;
  while (true) {
    std::erase_if(missing, [&](int member) { return store.check({key_of(member)}); });
    if (missing.empty()) return;
    domain.failure.throw_if_failed({.rank = domain.rank, .op = "join " + key});
    if (std::chrono::steady_clock::now() > deadline) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
  std::vector<std::string> names;
  for (const int member : missing) names.push_back(std::to_string(member));
  throw TimeoutError("after " + seconds_text(std::chrono::duration<double>(limit).count()) + " these ranks had not joined: " +
                         join(names, ", "),
                     {.rank = domain.rank, .op = "join"}, "look at the output of those ranks");
}

}  // namespace penstock
