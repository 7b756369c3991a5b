// Local search: shortens an order by moving actions on its critical path.
#pragma once

#include "plan/auto/order.h"

namespace penstock::plan::auto_search {

//! Tries at most `budget` neighbors. Stores the best order in `order` and returns its makespan.
double improve(const Problem& problem, Order& order, int budget);

}  // namespace penstock::plan::auto_search
