// Explains a failure from the flight recorders of the ranks.
#pragma once

#include <penstock/base/ids.h>

#include <string>
#include <vector>

namespace penstock::comm {

//! Analyzes the JSON dumps of several ranks: which rank did not join which collective, and which sends and
//! receives did not complete. `silent` lists the ranks without a dump. Returns one line per finding.
std::vector<std::string> explain_flight(const std::vector<std::string>& dumps,
                                        const std::vector<Rank>& silent);

}  // namespace penstock::comm
