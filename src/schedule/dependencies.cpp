// The dependency rule as vectors, and the text of facts.
#include "schedule/dependencies.h"

#include "base/text.h"

namespace penstock::schedule {

std::string to_string(const Fact& fact, const Wiring& wiring) {
  const std::string of_microbatch = str_cat(" of microbatch ", fact.microbatch.value);
  const auto of_stage = [&](const char* what) {
    return what + (str_cat(" of stage ", fact.index)) + of_microbatch;
  };
  const auto of_transfer = [&](const char* what, StageId from, StageId to) {
    return str_cat(what, (str_cat(" of stage ", from.value)), of_microbatch, ", received by stage ",
                   to.value);
  };
  switch (fact.kind) {
    case FactKind::Output:
      return of_stage("the output");
    case FactKind::InputGradient:
      return of_stage("the input gradient");
    case FactKind::WeightGradient:
      return of_stage("the weight gradient");
    case FactKind::ForwardSent:
    case FactKind::ForwardReceived:
      return of_transfer("the output", wiring.edge(fact.index).from, wiring.edge(fact.index).to);
    case FactKind::BackwardSent:
    case FactKind::BackwardReceived:
      return of_transfer("the input gradient", wiring.edge(fact.index).to, wiring.edge(fact.index).from);
  }
  return "";
}

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
