// What a resumed run changes compared with the run that wrote its checkpoint.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace penstock::tool {

//! Compares two resolved configurations (TOML, one setting per line). Returns one line for each setting that
//! influences what is trained and differs. Topology, outputs and displays are not compared, and the number of
//! steps only if learning rates depend on it. `given` are the keys of the settings that the user gave; others
//! have their defaults.
std::vector<std::string> changed_settings(const std::string& stored, const std::string& current,
                                          const std::set<std::string>& given);

}  // namespace penstock::tool
