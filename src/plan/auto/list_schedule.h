// List scheduling: whenever a rank is free, a rule chooses its next action.
#pragma once

#include "plan/auto/order.h"

#include <optional>

namespace penstock::plan::auto_search {

enum class Preference { Backward, Forward, Alternate };

//! The parameters of a rule. Auto tries a grid of them.
struct Rule {
  Preference prefer = Preference::Backward;
  //! The maximum number of microbatches in flight on a rank, relative to the number that covers the round
  //! trip of a microbatch at full speed.
  double depth = 1;
  int group = 1;        //!< microbatches that one stage of a rank processes before the next stage
  double patience = 0;  //!< a W waits up to this fraction of its duration for a more urgent action
  bool split = true;    //!< use I and W instead of B
};

//! Returns an order that fits in the memory of every rank, or nullopt if the rule gets stuck.
std::optional<Order> list_schedule(const Problem& problem, const Rule& rule);

}  // namespace penstock::plan::auto_search
