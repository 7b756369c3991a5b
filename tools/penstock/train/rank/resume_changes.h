// What a resumed run changes compared with the run that wrote its checkpoint.
#pragma once

#include <string>
#include <vector>

namespace penstock::tool {

//! Compares two resolved configurations (TOML, one setting per line). Returns one line for each setting that
//! influences what is trained and differs. Topology, outputs and displays are not compared.
std::vector<std::string> changed_settings(const std::string& stored, const std::string& current);

}  // namespace penstock::tool
