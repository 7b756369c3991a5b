// The dependency rule as vectors.
#include "schedule/dependencies.h"

namespace penstock::schedule {

std::vector<Fact> dependencies(const Action& action, const ActionContext& context) {
  std::vector<Fact> facts;
  for_each_need(action, context, [&](const Fact& fact) { facts.push_back(fact); });
  return facts;
}

std::vector<Fact> yields(const Action& action, const ActionContext& context) {
  std::vector<Fact> facts;
  for_each_yield(action, context, [&](const Fact& fact) { facts.push_back(fact); });
  return facts;
}

}  // namespace penstock::schedule
