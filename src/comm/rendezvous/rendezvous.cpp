// Rendezvous of the members of a group.
#include "comm/rendezvous/rendezvous.h"

#include "base/text.h"
#include "comm/failure/monitor.h"
#include "comm/failure/sockets.h"

#include <algorithm>
#include <thread>

namespace penstock::comm {

// Every poll is one message, whatever the number of members. All ranks poll the same store, so they poll less
// often if there are many: together at most 20,000 times per second.
static std::chrono::milliseconds longest_pause(std::size_t members) {
  return std::chrono::milliseconds(std::max<std::size_t>(50, members / 20));
}

void await_members(c10d::Store& store, WorldGeneration& generation, const std::string& key,
                   const std::vector<int>& members, std::chrono::milliseconds limit) {
  const auto key_of = [&key](int member) { return str_cat(key, "/here/", member); };
  const std::string complete = key + "/complete";
  // Only the first announcement of a rank counts. The last rank to arrive tells the others.
  if (store.add(key_of(generation.rank.value), 1) == 1 &&
      store.add(key + "/arrived", 1) == static_cast<std::int64_t>(members.size()))
    store.set(complete, std::vector<std::uint8_t>{1});
  const auto deadline = std::chrono::steady_clock::now() + limit;
  auto pause = std::chrono::milliseconds(1);
  while (!store.check({complete})) {
    generation.failure.throw_if_failed({.rank = generation.rank, .op = "join " + key});
    if (std::chrono::steady_clock::now() > deadline) {
      std::vector<int> missing = members;
      std::erase_if(missing, [&](int member) { return store.check({key_of(member)}); });
      if (missing.empty()) return;  // the last one arrived just now
      throw TimeoutError(
          "after " + format_seconds(limit) + " these ranks had not joined: " + join(missing, ", "),
          {.rank = generation.rank, .op = "join"}, "check the output of those ranks");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, longest_pause(members.size()));
  }
}

void check_members_answer(c10d::Store& store, WorldGeneration& generation, const std::string& prefix,
                          const std::vector<int>& members) {
  constexpr std::chrono::milliseconds limit{2000};
  constexpr std::size_t enough = 4;  // pairs to report; each member that does not answer costs up to `limit`
  std::vector<std::string> pairs;
  for (const int member : members) {
    if (member == generation.rank.value || pairs.size() == enough) continue;
    generation.failure.throw_if_failed({.rank = generation.rank, .op = "connect"});
    const std::string key = live_key(prefix, Rank(member));
    if (!store.check({key})) continue;
    const Endpoint endpoint = Endpoint::parse(store.get_to_str(key));
    if (connect_to(endpoint, limit).connection) continue;
    const auto [low, high] = std::minmax({member, generation.rank.value});
    pairs.push_back(str_cat("ranks ", low, " and ", high, " cannot reach each other: rank ", member,
                            " does not answer at ", endpoint.host, " port ", endpoint.port));
  }
  if (pairs.empty()) return;
  const CommError error(
      join(pairs, "; "), {.rank = generation.rank, .op = "connect"},
      "check routes and firewalls between the machines; GLOO_SOCKET_IFNAME selects the interface");
  if (generation.publish) generation.publish({generation.rank, error.message()});
  throw error;
}

}  // namespace penstock::comm
