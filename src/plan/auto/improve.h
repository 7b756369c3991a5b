// Local search: shorten an order by moving actions along its critical path.
#pragma once

#include "order.h"

namespace penstock::auto_search {

//! Tries at most `budget` neighbours; returns the shortest makespan, and leaves its order in `order`.
double improve(const Problem& problem, Order& order, int budget);

}  // namespace penstock::auto_search
