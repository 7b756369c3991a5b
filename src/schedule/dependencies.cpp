// The dependency rule as vectors.
#include "schedule/dependencies.h"

namespace penstock::schedule {

std::vector<Fact> dependencies(const Action& action, const Topology& topology) {
  std::vector<Fact> facts;
  for_each_need(action, topology, [&](const Fact& fact) { facts.push_back(fact); });
  return facts;
}

std::vector<Fact> yields(const Action& action, const Topology& topology) {
  std::vector<Fact> facts;
  for_each_yield(action, topology, [&](const Fact& fact) { facts.push_back(fact); });
  return facts;
}

}  // namespace penstock::schedule
